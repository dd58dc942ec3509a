"""Mean of logits over views of an image (Perez et al. 2021): flips and shifts at test time.

Views are not a map from images to images: one image becomes several, and the classifier's logits for them are averaged.
So this is a classifier around a classifier. It is deterministic and differentiable, and attacks need no special rule.
"""

import torch
from torch import nn
from torch.nn import functional as F

from soap import validate
from soap.purifiers.purifier import ClassifierWrapper
from soap.shapes import Float, Tensor


class ViewAverage(ClassifierWrapper):
    """`ViewAverage(classifier)(x)` is the mean of the classifier's logits over shifted and flipped copies of `x`.

    shift: pixels; the copies are shifted by -shift, 0 and shift in both directions, and edges are repeated. 0 for none.
    flip: add the mirror image of every copy; leave it out for digits.
    """

    setting_names = ("shift", "flip")

    def __init__(self, classifier: nn.Module, *, shift: int = 2, flip: bool = False) -> None:
        super().__init__(classifier)
        validate.at_least("shift", shift, 0)
        self.shift, self.flip = shift, flip

    def views(self, x: Float[Tensor, "batch c h w"]) -> list[Float[Tensor, "batch c h w"]]:
        """Return the copies, the unchanged images among them."""
        height, width = x.shape[2:]
        padded = F.pad(x, (self.shift,) * 4, mode="replicate")
        places = sorted({0, self.shift, 2 * self.shift})
        made = [padded[:, :, top : top + height, left : left + width] for top in places for left in places]
        return made + [view.flip(3) for view in made] if self.flip else made

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch classes"]:
        """Return the mean logits."""
        return torch.stack([self.classifier(view) for view in self.views(x)]).mean(0)
