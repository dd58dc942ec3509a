"""DeepFool as its authors published it: one image at a time, one class after another."""

import torch

from soap.attacks import DeepFool
from soap.auxiliary import JointModel
from soap.bench.plain_walks import gradient
from soap.shapes import Float, Int, Tensor

PAST = 1e-4
"""The authors' constant: every step goes this far past the linearised boundary."""


def deepfool(
    model: JointModel, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"], settings: DeepFool
) -> Float[Tensor, "batch *shape"]:
    """All images of a batch, one by one."""
    rows = zip(torch.split(x, 1), y.tolist(), strict=True)
    return torch.cat([deepfool_one(model, image, label, settings) for image, label in rows])


def deepfool_one(
    model: JointModel, image: Float[Tensor, "1 *shape"], label: int, settings: DeepFool
) -> Float[Tensor, "1 *shape"]:
    """Algorithm 2 of Moosavi-Dezfooli et al. (2016): step to the nearest boundary of the linearised classifier."""
    with torch.no_grad():
        order = model(image)[0].argsort(descending=True).tolist()
    if order[0] != label:
        return image
    others = [k for k in order if k != label][: (settings.candidates or len(order)) - 1]
    found, total = image.clone(), torch.zeros_like(image)
    for _ in range(settings.steps):
        point = found.clone().requires_grad_()
        logits = model(point)[0]
        if int(logits.argmax()) != label:
            break
        logits[label].backward(retain_graph=True)
        own = gradient(point).clone()
        nearest, step = float("inf"), torch.zeros_like(image)
        for k in others:
            point.grad = None
            logits[k].backward(retain_graph=True)
            w = gradient(point) - own
            norm = float(w.norm())
            distance = abs(float(logits[k].detach() - logits[label].detach())) / norm if norm else nearest
            if distance < nearest:
                nearest, step = distance, (distance + PAST) / norm * w
        total = total + step
        found = (image + (1 + settings.overshoot) * total).clamp(0, 1)
    model.zero_grad()
    return found
