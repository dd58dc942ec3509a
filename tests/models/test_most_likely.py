"""`most_likely` against a plain search with the mixture's own log-probability."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soap.models.logistic_mixture import Candidates, LogisticMixture, centred, most_likely, parameters_per_pixel
from soap.shapes import Tensor


def mixture_of(raw: Tensor, *, channels: int, mixtures: int, levels: int = 256) -> LogisticMixture:
    return LogisticMixture.from_network(raw[..., None], channels=channels, mixtures=mixtures, levels=levels)


def plain_search(mixture: LogisticMixture, candidates: Tensor) -> Tensor:
    """Pick each channel's candidate of the largest joint log-probability with the channels chosen before."""
    weights, before, chosen = mixture.log_weights, torch.zeros(len(candidates), 0, 1, dtype=torch.float64), []
    for channel in range(candidates.shape[1]):
        values = centred(candidates[:, channel], mixture.levels, torch.float64)
        joint = weights + mixture.component(channel, values, before)
        best = joint.logsumexp(1).argmax(1, keepdim=True)
        chosen.append(candidates[:, channel].gather(1, best))
        weights = weights + mixture.component(channel, values.gather(1, best), before)
        before = torch.cat([before, values.gather(1, best)[:, None]], 1)
    return torch.cat(chosen, 1)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    channels=st.integers(1, 4),
    mixtures=st.integers(1, 4),
    levels=st.sampled_from([2, 3, 16, 256]),
    spread=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_most_likely_equals_a_plain_search(seed: int, channels: int, mixtures: int, levels: int, spread: float) -> None:
    """The mixtures include means far outside the range and tiny and huge scales; the levels include both edges."""
    generator = torch.Generator().manual_seed(seed)
    numbers = parameters_per_pixel(channels, mixtures)
    raw = spread * torch.randn(6, numbers, generator=generator, dtype=torch.float64)
    candidates = torch.stack([torch.randperm(levels, generator=generator) for _ in range(6 * channels)])
    candidates = candidates.reshape(6, channels, levels)[..., :20]
    mixture = mixture_of(raw, channels=channels, mixtures=mixtures, levels=levels)
    got = most_likely(mixture, Candidates.among(candidates, levels, torch.float64))
    assert torch.equal(got, plain_search(mixture, candidates))


def test_nearest_candidate_wins_if_all_probabilities_underflow() -> None:
    """In single precision these probabilities are zero, but their logarithms are finite."""
    raw = torch.zeros(2, parameters_per_pixel(1, 2))
    raw[:, 2:4] = torch.tensor([[0.9, 0.95], [-0.9, -0.95]])  # means, far from the candidates
    raw[:, 4:6] = -7
    middle = torch.arange(120, 136).expand(2, 1, 16)
    got = most_likely(mixture_of(raw, channels=1, mixtures=2), Candidates.among(middle, 256, torch.float32))
    assert got.tolist() == [[135], [120]]


@pytest.mark.parametrize("log_scale", [-1e4, 1e4])
def test_extreme_scale_of_one_component_does_not_hide_the_others(log_scale: float) -> None:
    """One component peaks at level 200; the other is too narrow or too wide to matter."""
    raw = torch.zeros(1, parameters_per_pixel(1, 2))
    raw[0, 0] = 5.0
    raw[0, 2:4] = torch.tensor([float(centred(torch.tensor(200), 256, torch.float32)), 50.0])
    raw[0, 4:6] = torch.tensor([-4.0, log_scale])
    levels = torch.tensor([199, 0, 200, 255, 201]).expand(1, 1, 5)
    got = most_likely(mixture_of(raw, channels=1, mixtures=2), Candidates.among(levels, 256, torch.float32))
    assert got.item() == 200


@pytest.mark.parametrize("mixtures", [1, 3, 10])
def test_ties_go_to_the_first_candidate(mixtures: int) -> None:
    """Components symmetric about the boundary of 127 and 128: a level and its mirror image are equally likely."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(8, parameters_per_pixel(1, mixtures), generator=generator)
    raw[:, mixtures : 2 * mixtures] = 0
    for first, second in ((127, 128), (128, 127), (100, 155), (255, 0)):
        levels = torch.tensor([first, second] * 16).expand(8, 1, 32)
        got = most_likely(mixture_of(raw, channels=1, mixtures=mixtures), Candidates.among(levels, 256, torch.float32))
        assert (got == first).all()


def test_candidates_of_one_pixel_equal_the_slice_of_the_row() -> None:
    row = Candidates.among(torch.arange(24).reshape(2, 4, 1, 3), 256, torch.float32)
    alone = Candidates.among(torch.arange(24).reshape(2, 4, 1, 3)[:, 2], 256, torch.float32)
    for name in ("levels", "values", "ends", "signs", "inside"):
        assert torch.equal(getattr(row.at(2), name), getattr(alone, name))
