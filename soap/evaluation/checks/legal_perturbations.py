"""Check 1: attacked images are images, and inside the ball."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, failed, not_run, passed

SLACK = 1e-6

Images = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far images went: norm of the perturbation, of it after rounding, and steps outside [0, 1]."""

    norm: float = 0.0
    rounded: float = 0.0
    outside: float = 0.0
    images: int = 0
    broken: int = 0

    def with_batch(self, x: Images, clean: Images, norm: str) -> "Reach":
        """The larger of both; `broken` counts images that are not finite."""
        finite = np.asarray(np.isfinite(x).reshape(len(x), -1).all(1))
        x, clean = x[finite], clean[finite]
        return Reach(
            norm=max(self.norm, _largest(x - clean, norm)),
            rounded=max(self.rounded, _largest(eight_bits(x, clean) - clean, norm)),
            outside=max(self.outside, float(max((-x).max(initial=0.0), (x - 1).max(initial=0.0)))),
            images=self.images + len(finite),
            broken=self.broken + int((~finite).sum()),
        )


@check(1, "legal perturbations")
def legal(evidence: Evidence) -> Answer:
    """Every stored image, of every attempt, as it is and in 8 bits."""
    threat, plan = evidence.plan["threat"], evidence.plan
    clean = evidence.data.x.cpu().numpy().astype(np.float64)
    reach = Reach()
    for attempt in range(len(plan["attempts"])):
        for number in range(-(-len(clean) // int(plan["batch"]))):
            batch = evidence.folder.batch(attempt, number)
            if batch is not None and len(batch.rows):
                reach = reach.with_batch(batch.x.astype(np.float64), clean[batch.rows], threat["norm"])
    if reach.images == 0:
        return not_run("No attacked image is stored.")
    limit = threat["eps"] + SLACK
    figure = (
        f"{reach.images:,} images: {threat['norm']} at most {reach.norm:.6f} of {threat['eps']:.6f}, "
        f"{reach.rounded:.6f} in 8 bits"
    )
    if reach.broken:
        return failed(f"{reach.broken:,} images are not finite", "An attack returned NaN or infinite pixels.")
    if reach.outside > 0:
        return failed(f"{reach.outside:.6f} outside [0, 1]", "An attack left the range of pixels.")
    if max(reach.norm, reach.rounded) > limit:
        return failed(figure, "An attack left the ball: its images are not those of the threat.")
    return passed(figure, "All attacked images lie in the ball and in [0, 1], also as 8-bit images.")


def eight_bits(x: Images, clean: Images) -> Images:
    """Rounded to multiples of 1/255 towards the clean image; values that are multiples but for rounding stay."""
    up, down = np.ceil(x * 255 - 1e-4) / 255, np.floor(x * 255 + 1e-4) / 255
    return np.where(x >= clean, down, up)


def _largest(delta: Images, norm: str) -> float:
    if len(delta) == 0:
        return 0.0
    flat = np.abs(delta.reshape(len(delta), -1))
    return float(flat.max() if norm == "linf" else np.sqrt((flat**2).sum(1)).max())
