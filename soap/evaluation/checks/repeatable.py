"""Whether the attack comes out the same: again with the same seed, and scored in other batches (check 18)."""

from typing import Any

import torch

from soap.evaluation.adaptive.probes.subject import Subject, from_one_start

IMAGES = 32
OTHER_BATCH = 7


def repeated(subject: Subject) -> dict[str, Any]:
    """Bits that differ between two runs, and decisions that differ between two batch sizes."""
    x, y = subject.few(IMAGES)
    attack = from_one_start(subject.strongest.attack)
    runs = [subject.strike(attack, subject.model, x, y, salt=18) for _ in range(2)]
    whole = subject.right(runs[0], y)
    pairs = zip(torch.split(runs[0], OTHER_BATCH), torch.split(y, OTHER_BATCH), strict=True)
    parts = torch.cat([subject.right(*pair) for pair in pairs])
    return {
        "images": len(x),
        "different_images": int((runs[0] != runs[1]).flatten(1).any(1).sum()),
        "different_decisions": int((whole != parts).sum()),
        "batches": [min(len(x), subject.batch), OTHER_BATCH],
        "moved": abs(float((whole.double() - parts.double()).mean())),
    }
