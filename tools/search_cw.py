"""Measure CW with more binary-search steps than the paper's, which a footnote of Table 1 cites.

python tools/search_cw.py mnist-fcn-pgd-at --images 2000 --results results/paper.jsonl
"""

import argparse
from pathlib import Path

from soap import data, recipes, zoo
from soap._runtime import devices
from soap.attacks import CarliniWagner
from soap.evaluation import evaluate_transfer
from soap.results import Store

STEPS = (5, 9)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure CW with more binary-search steps than the paper's.")
    parser.add_argument("model", help="a bundled model of MNIST")
    parser.add_argument("--images", type=int, required=True, help="the first so many test images")
    parser.add_argument("--results", type=Path, required=True, help="where the rows go")
    parser.add_argument("--batch", type=int, default=250, help="images at once")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--data-root", type=Path, help="where data sets lie")
    given = parser.parse_args()
    device = devices.pick_device(given.device)
    images = data.load(recipes.read(given.model).data, "test", root=given.data_root).take(given.images)
    attacks = {f"cw, {steps} search steps": CarliniWagner(radius=4.0, search_steps=steps) for steps in STEPS}
    model = zoo.load(given.model, device=device)
    for row in evaluate_transfer(model, images.to(device), attacks, [], store=Store(given.results), batch=given.batch):
        print(row.model, row.attack.name, row.n, f"{100 * row.accuracy:.1f} %")
