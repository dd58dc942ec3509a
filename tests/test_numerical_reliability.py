"""Threads, batch size and memory layout change no label and no radius; ties of min-aux do not depend on rounding.

`make numerics` compares more images and models and stores the counts in results/reliability.jsonl.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from counting import amount, count
from hypothesis import given
from hypothesis import strategies as st

import soap
from soap.data import Dataset
from soap.errors import FileError
from soap.evaluation import evaluate_transfer
from soap.purifiers import soap as soap_purifier
from soap.purifiers.soap import LOSS_TOLERANCE, _first, is_minimal

IMAGES = {"mnist-fcn-dr": amount(12, 500), "mnist-cnn-dr": amount(6, 250), "mnist-cnn-certified": amount(0, 100),
          "cifar10-resnet18-rp": amount(0, 25), "cifar10-resnet18-lc": amount(0, 25)}  # fmt: skip
"""Clean images of each model; the same number attacked by PGD is added. Sign steps amplify rounding most in ResNets."""

THREADS, BATCHES = (1, 2), (250, 32, 7, 1)
LAYOUTS = (torch.contiguous_format, torch.channels_last)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch use that many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sample(name: str) -> tuple[soap.JointModel, Dataset, float]:
    """Return a model, images of the data that it was trained for, and the usual radius of attacks on them."""
    digits = name.startswith("mnist")
    try:
        data = soap.data.load("mnist-mini" if digits else "cifar10")
    except FileError as error:
        pytest.skip(f"needs the published images: {error}")
    return soap.load(name), data.take(IMAGES[name]), 0.3 if digits else 8 / 255


def batch_sizes(images: int) -> list[int]:
    """Return the batch sizes that split that many images in different ways."""
    return [*dict.fromkeys(min(batch, images) for batch in BATCHES)]


def attacked(model: soap.JointModel, data: Dataset, eps: float) -> torch.Tensor:
    """Return the images and then the same images after PGD."""
    return torch.cat([data.x, soap.attacks.PGD(eps=eps, step_size=eps / 10, steps=10)(model, data.x, data.y)])


def purified(model: soap.JointModel, x: torch.Tensor, batch: int, layout: torch.memory_format) -> list[torch.Tensor]:
    """Return labels, radii and images, purified in batches of that size and layout."""
    purify = soap.SOAP(model)
    found = []
    for part in x.split(batch):
        out = purify(part.contiguous(memory_format=layout))
        found.append((model(out.x).argmax(1), out.eps, out.x.contiguous()))
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


MODELS = [name for name, images in IMAGES.items() if images]


@pytest.mark.parametrize("name", MODELS)
def test_threads_batches_and_layouts_change_no_label_and_no_radius(name):
    model, data, eps = sample(name)
    x = attacked(model, data, eps)
    with threads(1):
        labels, radii, points = purified(model, x, BATCHES[0], LAYOUTS[0])
    different = {"labels": 0, "radii": 0, "images with another pixel": 0}
    trials, failures = 0, []
    for number in THREADS:
        for batch in batch_sizes(len(x)):
            for layout in LAYOUTS:
                with threads(number):
                    got = purified(model, x, batch, layout)
                wrong = {"labels": got[0] != labels, "radii": got[1] != radii}
                for what, where in {**wrong, "images with another pixel": (got[2] != points).flatten(1).any(1)}.items():
                    different[what] += int(where.sum())
                trials += len(x)
                case = f"{number} threads, batch {batch}, {layout}"
                failures += [f"{case}: image {i}" for i in (wrong["labels"] | wrong["radii"]).nonzero().flatten()]
    promise = f"{name}: the same labels and radii on 1 and 2 threads, in batches of 1, 7, 32, 250, channels last or not"
    count(promise, trials, failures, {f"other {what}": number for what, number in different.items()})


@pytest.mark.parametrize("name", MODELS)
def test_threads_and_batches_change_no_count_of_an_evaluation(name):
    """The attack runs in the same batches, so its rounding is included."""
    model, data, eps = sample(name)
    attacks = {"pgd": soap.attacks.PGD(eps=eps, step_size=eps / 10, steps=10)}
    counts = {}
    for number in THREADS:
        for batch in batch_sizes(len(data)):
            with threads(number):
                rows = evaluate_transfer(model, data, attacks, [soap.SOAP(model)], batch_size=batch)
            counts[number, batch] = [(row.attack.name, row.defence.name, row.correct, row.n) for row in rows]
    expected = counts[THREADS[0], min(BATCHES[0], len(data))]
    failures = [f"{case}: {found}, expected {expected}" for case, found in counts.items() if found != expected]
    promise = f"{name}: an evaluation counts the same on 1 and 2 threads, in batches of 1, 7, 32, 250"
    count(promise, len(counts), failures, {"images": len(data), "rows": len(expected)})


GAPS = st.sampled_from((0.0, 1e-7, 1e-6, 5e-6, 8e-6, 1.2e-5, 2e-5, 1e-4, 0.1, 2.0))
"""Relative to the lowest loss; at least one rounding error of `ROUNDING` away from the tolerance."""

ROUNDING = 5e-7
"""A few ulps of float32, relative."""


@given(
    st.lists(st.lists(GAPS, min_size=11, max_size=11), min_size=1, max_size=4),
    st.lists(st.floats(0.01, 10), min_size=4, max_size=4),
    st.sampled_from((1, -1)),
    st.integers(0, 2**32 - 1),
)
def test_rounding_errors_do_not_change_the_selected_radius(gaps, lowest, sign, seed):
    exact = torch.tensor([[sign * low * (1 + sign * (gap - min(column))) for gap in column]
                          for low, column in zip(lowest, gaps, strict=False)], dtype=torch.float64).T  # fmt: skip
    noise = 2 * torch.rand(exact.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    rounded = (exact * (1 + ROUNDING * noise)).float()
    expected = [next(k for k, gap in enumerate(column) if gap - min(column) <= LOSS_TOLERANCE) for column in gaps]
    assert _first(is_minimal(rounded)).tolist() == expected


@pytest.mark.parametrize("name", MODELS)
def test_ten_times_more_or_less_tolerance_changes_few_radii(name, monkeypatch):
    """Gaps between losses are rounding or real: hardly any lie near the tolerance."""
    model, data, eps = sample(name)
    x = attacked(model, data, eps)
    labels, radii, _ = purified(model, x, BATCHES[0], LAYOUTS[0])
    different = {}
    for factor in (0.1, 10):
        monkeypatch.setattr(soap_purifier, "LOSS_TOLERANCE", factor * LOSS_TOLERANCE)
        other, chosen, _ = purified(model, x, BATCHES[0], LAYOUTS[0])
        different[f"radii at {factor:g} times the tolerance"] = int((chosen != radii).sum())
        different[f"labels at {factor:g} times the tolerance"] = int((other != labels).sum())
    failures = [f"{what}: {number}" for what, number in different.items() if number > 0.01 * len(x)]
    promise = f"{name}: at most 1 % of radii and labels change with 0.1 or 10 times the tolerance of ties"
    count(promise, len(x), failures, different)
