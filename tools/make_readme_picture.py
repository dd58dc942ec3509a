"""Draw the README's picture, the paper's Figure 2 for the bundled CNN. The output is deterministic.

    python tools/make_readme_picture.py [OUT]

OUT is docs/images/purification.png of this clone unless given. It uses the figure code of `soap demo`'s page.
"""

import sys
from pathlib import Path

import soap
from soap.evaluation import PAPER
from soap.evaluation.showcase import make_showcase
from soap.report.demo_page import draw_digits
from soap.report.drawing import png

MODEL, DATA = "mnist-cnn-dr", "mnist-mini"

if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    default = Path(__file__).parents[1] / "docs" / "images" / "purification.png"
    out = Path(sys.argv[1]) if len(sys.argv) == 2 else default
    model = soap.load(MODEL)
    digits = soap.data.load(DATA).take(10)  # classes alternate, so these are the first of each
    x_adv = PAPER[DATA]["pgd"](model, digits.x, digits.y)
    show = make_showcase(model, digits, x_adv, soap.SOAP(model))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(png(draw_digits(show, attack="attacked by PGD")))
    print(out, out.stat().st_size, "bytes")
