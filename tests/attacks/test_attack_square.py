"""Square: its queries, the sizes of its squares, and its results on models with known optimum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from soap.attacks import Square, cross_entropy, fooled, margin
from soap.attacks.square import WINDOW_DRAWS, changed_windows, pattern, pattern_grid, tile_count
from soap.auxiliary import JointModel
from soap.balls import row_norms

Problem = tuple[nn.Module, Tensor, Tensor]
NewModel = Callable[..., JointModel]


@pytest.fixture(scope="module")
def problem(new_model: NewModel) -> Problem:
    """A model in double precision and samples; the last two are misclassified from the start."""
    model = new_model().double().eval()
    x = 0.2 + 0.6 * torch.rand(16, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    return model, x, torch.cat([y[:14], (y[14:] + 1) % 4])


class Linear(nn.Module):
    """Two classes, `lead` apart in the middle of the box; images of two channels, 4 x 3."""

    def __init__(self, lead: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(2, 4, 3, dtype=torch.float64, generator=generator))
        self.lead = lead

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise AssertionError("a black box was asked for a gradient")
        height = ((x - 0.5) * self.weight).flatten(1).sum(1)
        return torch.stack([self.lead - height, height], 1)


def test_square_finds_the_best_corner_of_a_linear_model() -> None:
    x = 0.5 + 0.01 * torch.randn(6, 2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, eps = torch.zeros(6, dtype=torch.long), 0.05
    model = Linear(lead=10.0)  # large enough to prevent success, small enough that cross-entropy does not vanish
    for loss in ("margin", "ce"):
        x_adv = Square(eps=eps, queries=500, loss=loss)(model, x, y)
        assert torch.allclose(x_adv, x + eps * model.weight.sign(), atol=1e-12)
    reach = margin(model(x), y) + 10 + 2 * eps * model.weight.abs().sum()  # for a lead of 0
    near = float(reach.median().detach())
    model = Linear(lead=near)
    x_adv = Square(eps=eps, queries=500)(model, x, y)
    assert torch.equal(fooled(model, x_adv, y), reach > near)
    assert 0 < fooled(model, x_adv, y).sum() < 6


def test_square_starts_at_stripes_and_repaints_one_square_per_query(
    problem: Problem, recording: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = problem
    x, y = x[:14], y[:14]
    eps, queries = 1e-4, 60  # too small for a success: all samples stay to the end
    attack, propose, proposed_points = Square(eps=eps, queries=queries), Square._propose, []

    def propose_and_keep(self: Square, *arguments: Any) -> tuple[Tensor, Tensor]:
        points, changed = propose(self, *arguments)
        proposed_points.append(points)
        return points, changed

    monkeypatch.setattr(Square, "_propose", propose_and_keep)
    recorded = recording(model)
    found = attack(recorded, x, y)
    assert recorded.sizes[:3] == [8, 14, 14]
    stripes, *proposals = proposed_points
    assert len(proposals) == queries - 1
    assert torch.equal(recorded.asked[2], stripes)
    asked = iter(recorded.asked[3:])
    signs = ((stripes - x) / eps).round()
    assert torch.allclose(stripes, x + eps * signs, atol=1e-12)
    assert (signs.abs() == 1).all()
    assert (signs == signs[:, :, :1]).all()  # the same down a column
    assert 0.3 < (signs[:, :, 0] > 0).double().mean() < 0.7
    best, highest = stripes, margin(model(stripes), y)
    corners = set()
    for query, proposed in enumerate(proposals, start=1):
        side = attack._side(query, 6, 6)
        painted = ((proposed - x) / eps).round()
        for row in range(14):
            changed = (proposed[row, 0] - best[row, 0]).abs() > eps
            if changed.any():
                rows, columns = changed.nonzero().unbind(1)
                # Some pixels had this value already; the changed ones have one value and fit into one square.
                assert int(rows.max() - rows.min()) < side
                assert int(columns.max() - columns.min()) < side
                assert len(painted[row, 0][changed].unique()) == 1
                corners.add((side, int(rows.min()), int(columns.min())))
        differs = (proposed != best).flatten(1).any(1)
        if differs.any():
            assert torch.equal(next(asked), proposed[differs])  # a square that has its colours already costs no pass
        losses = margin(model(proposed), y)
        better = losses > highest
        best = torch.where(better[:, None, None, None], proposed, best)
        highest = torch.where(better, losses, highest)
    assert torch.equal(found, best)
    assert next(asked, None) is None
    assert 0.1 < 1 - sum(recorded.sizes[3:]) / (14 * len(proposals)) < 0.5  # share of the passes that are saved
    places = {(row, column) for side, row, column in corners if side == 1}
    assert {row for row, _ in places} == set(range(6))  # the last row and column are reached, too
    assert {column for _, column in places} == set(range(6))


@pytest.mark.parametrize("queries", [100, 1000, 5000, 10_000])
def test_squares_shrink_on_the_schedule_of_autoattack(queries: int) -> None:
    theirs = pytest.importorskip("pyautoattack.square").SquareAttack(None, eps=0.1, n_queries=queries, p_init=0.8)
    attack = Square(eps=0.1, queries=queries)
    for query in range(1, queries, max(queries // 500, 1)):
        covered = theirs.p_selection(query - 1)
        assert attack._side(query, 28, 28) == max(round((covered * 28 * 28) ** 0.5), 1)


def test_square_sizes_of_the_first_and_last_query() -> None:
    attack = Square(eps=0.1, queries=10_000)
    assert attack._side(1, 32, 32) == 29  # sqrt(0.8 * 32 * 32) = 28.6
    assert attack._side(11, 32, 32) == 29
    assert attack._side(12, 32, 32) == 20  # half the area
    assert attack._side(9_999, 32, 32) == 1
    assert attack._side(1, 3, 200) == 3  # a square is no wider than the image


def test_samples_leave_at_their_first_success_and_keep_it(problem: Problem, recording: Any) -> None:
    model, x, y = problem
    recorded = recording(model)
    x_adv = Square(eps=0.06, queries=80)(recorded, x, y)
    wrong = fooled(model, x_adv, y)
    assert torch.equal(x_adv[14:], x[14:])  # misclassified from the start: they cost one forward pass
    sizes = recorded.sizes[2:]
    assert sizes[0] == 14
    assert max(sizes[-20:]) <= (~wrong[:14]).sum() + wrong[:14].sum() // 2
    assert 60 < len(sizes) <= 80  # queries that change no image make no pass
    assert 0 < (~wrong).sum() < 14
    for row in (wrong[:14]).nonzero()[:, 0]:
        asked = [batch for batch in recorded.asked[2:] if (batch == x_adv[row]).flatten(1).all(1).any()]
        assert len(asked) == 1  # the first success was the last query of the sample


def test_a_success_is_kept_even_with_lower_loss() -> None:
    def cliff(x: Tensor) -> Tensor:
        """Three nearly equal logits; above 0.55 the prediction is wrong although the loss of class 0 is lower."""
        undecided, wrong = x.new_tensor([0.01, 0.0, 0.0]), x.new_tensor([0.0, 0.02, -10.0])
        return torch.where(x[:, 0, 0] > 0.55, wrong, undecided)

    x, y = 0.5 + torch.arange(16).reshape(16, 1, 1, 1) / 1000, torch.zeros(16, dtype=torch.long)
    stripes, x_adv = (Square(eps=0.1, queries=queries, loss="ce")(cliff, x, y) for queries in (1, 40))
    assert 0 < fooled(cliff, stripes, y).sum() < 16
    assert fooled(cliff, x_adv, y).all()
    assert (cross_entropy(cliff(x_adv), y) < cross_entropy(cliff(x), y)).all()


def test_search_ends_when_all_samples_have_success(problem: Problem, recording: Any) -> None:
    model, x, y = problem
    recorded = recording(model)
    assert fooled(model, Square(eps=0.6, queries=500)(recorded, x, y), y).all()
    assert len(recorded.sizes) < 400
    recorded = recording(model)
    assert torch.equal(Square(eps=0.1)(recorded, x, (model(x).argmax(1) + 1) % 4), x)
    assert recorded.sizes == [8, 16]


def test_square_result_does_not_depend_on_other_samples(problem: Problem) -> None:
    model, x, y = problem
    attack = Square(eps=0.06, queries=60, restarts=2, seed=3)
    together = attack(model, x, y)
    for part in (slice(0, 1), slice(3, 10)):
        assert torch.equal(attack(model, x[part], y[part]), together[part])


def test_seed_determines_the_squares(problem: Problem) -> None:
    model, x, y = problem
    one, same, other = (Square(eps=1e-3, queries=20, seed=seed)(model, x, y) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("side", [1, 2, 3, 5, 6, 7, 28, 29])
def test_l2_pattern_is_that_of_autoattack(side: int) -> None:
    theirs = pytest.importorskip("pyautoattack.square").SquareAttack(None, norm="L2", eps=0.1, device="cpu")
    eta, wanted = pattern(side).float(), theirs.eta(side)
    assert min((eta - wanted).abs().max(), (eta.T - wanted).abs().max()) < 1e-6


def test_l2_search_starts_at_a_grid_of_patterns() -> None:
    like, eps = torch.zeros(3, 2, 13, 16, dtype=torch.float64), 0.7
    rows, columns, side = tile_count(13, 16)
    assert (rows, columns, side) == (6, 8, 2)
    draws = torch.rand(3, rows * columns * 3, generator=torch.Generator().manual_seed(0))
    delta = pattern_grid(draws, like, eps)
    assert torch.allclose(row_norms(delta), torch.full((3,), eps, dtype=torch.float64))
    eta = pattern(side) * eps / (2 * rows * columns) ** 0.5
    tiles = delta[:, :, :12].unfold(2, side, side).unfold(3, side, side).flatten(0, 3)
    same = torch.stack([(tiles - kind).abs().amax((1, 2)) < 1e-12 for kind in (eta, -eta, eta.T, -eta.T)])
    assert (same.sum(0) == 1).all()
    assert (same.double().mean(1) > 0.15).all()


def slow_proposal(draw: Tensor, delta: Tensor, side: int, eps: float) -> Tensor:
    """Algorithm 3 of the paper for one image, window by window."""
    channels, height, width = delta.shape
    top, left, top2, left2 = (int(draw[i] * max((height, width)[i % 2] - side, 1)) for i in range(4))
    one = (slice(top, top + side), slice(left, left + side))
    two = (slice(top2, top2 + side), slice(left2, left2 + side))
    unused = max(eps**2 - float((delta**2).sum()), 0.0)
    eta = pattern(side).T if draw[4] < 0.5 else pattern(side)
    new = delta.clone()
    for channel in range(channels):
        either = torch.zeros(height, width, dtype=torch.bool)
        either[one], either[two] = True, True
        norm = (float((delta[channel][either] ** 2).sum()) + unused / channels) ** 0.5
        sign = 1 if draw[WINDOW_DRAWS + channel] < 0.5 else -1
        window = sign * eta + delta[channel][one] / max(float(delta[channel][one].norm()), 1e-12)
        new[channel][two] = 0
        new[channel][one] = norm * window / max(float(window.norm()), 1e-12)
    return eps * new / new.norm()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    shape=st.tuples(st.integers(1, 3), st.integers(3, 9), st.integers(3, 9)),
    side=st.integers(1, 3),
    share=st.floats(0, 1),
    eps=st.floats(0.01, 5),
)
def test_an_l2_proposal_follows_the_paper(
    seed: int, shape: tuple[int, int, int], side: int, share: float, eps: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    delta = torch.randn(4, *shape, dtype=torch.float64, generator=generator)
    delta = share * eps * delta / row_norms(delta)[:, None, None, None]
    draws = torch.rand(4, WINDOW_DRAWS + shape[0], generator=generator)
    wanted = torch.stack([slow_proposal(*each, side, eps) for each in zip(draws, delta, strict=True)])
    assert torch.allclose(changed_windows(draws, delta, side, eps), wanted, atol=1e-9)


@pytest.mark.parametrize("queries", [1, 2, 40])
def test_l2_search_uses_its_queries_and_stays_in_the_ball(problem: Problem, recording: Any, queries: int) -> None:
    model, x, y = problem
    recorded = recording(model)
    x_adv = Square(eps=1e-4, norm="l2", queries=queries)(recorded, x, y)
    assert recorded.sizes == [8, 16, *[14] * queries]
    assert all((row_norms(points - x[:14]) <= 1e-4 + 1e-12).all() for points in recorded.asked[2:])
    assert (margin(model(x_adv), y) >= margin(model(x), y)).all()


def test_l2_search_breaks_more_samples_with_more_queries(problem: Problem) -> None:
    model, x, y = problem
    broken = [int(fooled(model, Square(eps=0.3, norm="l2", queries=n)(model, x, y), y).sum()) for n in (1, 30, 300)]
    assert broken == sorted(broken)
    assert broken[0] + 3 <= broken[-1]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_targeted_search_reaches_the_target_class(problem: Problem, norm: str) -> None:
    model, x, _ = problem
    predicted, target = model(x).topk(2).indices.unbind(1)
    attack = Square(eps=0.3 if norm == "linf" else 1.8, norm=norm, queries=300, targeted=True)
    x_adv = attack(model, x, target)
    assert (model(x_adv).argmax(1) == target).double().mean() > 0.9
    assert torch.equal(attack(model, x, predicted), x)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    eps=st.floats(0, 0.5),
    queries=st.integers(1, 25),
    loss=st.sampled_from(["ce", "margin", "dlr"]),
    p_init=st.floats(0.01, 1),
)
def test_results_are_valid_and_never_worse_than_the_input(
    new_model: NewModel, seed: int, eps: float, queries: int, loss: str, p_init: float
) -> None:
    model = new_model(seed % 100).double().eval()
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(5, 1, 6, 6, dtype=torch.float64, generator=generator)
    y = torch.randint(4, (5,), generator=generator)

    def search(**more: int) -> Tensor:
        return Square(eps=eps, loss=loss, p_init=p_init, seed=seed, **{"queries": queries, **more})(model, x, y)

    x_adv = search()
    assert ((x_adv >= 0) & (x_adv <= 1)).all()
    assert ((x_adv - x).abs() <= eps + 1e-12).all()
    wrong = fooled(model, x_adv, y)
    assert (wrong | ~fooled(model, x, y)).all()
    assert (fooled(model, search(restarts=2), y) | ~wrong).all()
    if loss == "ce":
        assert (wrong | (cross_entropy(model(x_adv), y) >= cross_entropy(model(x), y) - 1e-12)).all()


def test_square_works_on_a_model_without_gradient(problem: Problem) -> None:
    model, x, y = problem
    attack = Square(eps=0.06, queries=30)
    assert torch.equal(attack(torch.no_grad()(lambda images: model(images)), x, y), attack(model, x, y))
