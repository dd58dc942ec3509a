"""Constraints of tables: every result is valid and in the ball; without constraints nothing changes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import soap
from soap.attacks import APGD, FGSM, PGD, RayS
from soap.constraints import ConstrainedAttack, ConstrainedPurifier, Constraints
from soap.errors import InputError

FEATURES = 8  # 0 immutable, 1-3 one-hot, 4 and 5 integers, 6 in [0.2, 0.6], 7 free
TABLE = Constraints(
    immutable=(0,),
    one_hot=((1, 2, 3),),
    integer={4: 0.25, 5: 1.0},
    lower={4: 0.25, 5: 0.0, 6: 0.2},
    upper={4: 1.0, 5: 1.0, 6: 0.6},
)


def rows(n: int, seed: int) -> torch.Tensor:
    """Valid rows in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand((n, FEATURES), generator=generator)
    x[:, 1:4] = nn.functional.one_hot(torch.randint(3, (n,), generator=generator), 3).float()
    x[:, 4] = torch.randint(1, 5, (n,), generator=generator) / 4
    x[:, 5] = torch.randint(2, (n,), generator=generator).float()
    x[:, 6] = 0.2 + 0.4 * x[:, 6]
    return x


def is_valid(row: list[float], origin: list[float]) -> bool:
    """What `TABLE` means, in plain Python."""
    return (
        row[0] == origin[0]
        and sorted(row[1:4]) == [0, 0, 1]
        and min(abs(row[4] - allowed) for allowed in (0.25, 0.5, 0.75, 1.0)) < 1e-4
        and row[5] in (0, 1)
        and 0.2 - 1e-6 <= row[6] <= 0.6 + 1e-6
        and -1e-6 <= row[7] <= 1 + 1e-6
    )


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3)).requires_grad_(False)


def attacks(eps: float, norm: str) -> list[soap.attacks.Attack]:
    made = [
        PGD(eps=eps, step_size=eps / 3, steps=5, norm=norm, start="random"),
        APGD(eps=eps, steps=5, norm=norm),
    ]
    return made + ([FGSM(eps=eps), RayS(eps=eps, queries=10)] if norm == "linf" else [])


def size(delta: torch.Tensor, norm: str) -> torch.Tensor:
    return torch.linalg.vector_norm(delta.double(), {"linf": torch.inf, "l2": 2, "l1": 1}[norm], dim=1)


@pytest.mark.usefixtures("unchecked_shapes")
@given(
    seed=st.integers(0, 10**6),
    eps=st.floats(0.05, 3.0),
    norm=st.sampled_from(["linf", "l2", "l1"]),
    which=st.integers(0, 3),
)
@settings(max_examples=40)
def test_every_attacked_row_is_valid_and_in_the_ball(seed, eps, norm, which):
    x, model = rows(6, seed), network(seed)
    chosen = attacks(eps, norm)
    attack = chosen[which % len(chosen)]
    found = ConstrainedAttack(attack=attack, constraints=TABLE)(model, x, model(x).argmax(1))
    assert all(map(is_valid, found.tolist(), x.tolist()))
    assert TABLE.feasible(found, x).all()
    assert (size(found - x, norm) <= eps + 1e-4).all()


@pytest.mark.usefixtures("unchecked_shapes")
@given(seed=st.integers(0, 10**6), spread=st.floats(0.0, 3.0))
@settings(max_examples=60)
def test_projected_rows_are_valid_and_no_feature_moves_further(seed, spread):
    x = rows(20, seed)
    changed = x + spread * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    made = TABLE.project(changed, x)
    clipped = made.clone()
    clipped[:, 7] = clipped[:, 7].clamp(0, 1)  # the range of the free feature is that of the attack
    assert all(map(is_valid, clipped.tolist(), x.tolist()))
    assert ((made - x).abs() <= (changed - x).abs() + 1e-4).all()
    assert torch.equal(TABLE.project(made, x), made)


@pytest.mark.usefixtures("unchecked_shapes")
@given(seed=st.integers(0, 10**6), norm=st.sampled_from(["linf", "l2"]), which=st.integers(0, 3))
@settings(max_examples=15)
def test_without_constraints_nothing_changes(seed, norm, which):
    x, model = torch.rand((4, FEATURES), generator=torch.Generator().manual_seed(seed)), network(seed)
    y = model(x).argmax(1)
    chosen = attacks(0.3, norm)
    attack = chosen[which % len(chosen)]
    assert torch.equal(ConstrainedAttack(attack=attack, constraints=Constraints())(model, x, y), attack(model, x, y))
    hedge = soap.purifiers.Hedge(model, eps=0.2, step_size=0.1, steps=3)
    plain, made = hedge(x), ConstrainedPurifier(hedge, Constraints())(x)
    for name in ("x", "eps", "loss_before", "loss_after"):
        assert torch.equal(getattr(made, name), getattr(plain, name))


def test_categories_and_integers_change_where_the_ball_contains_the_change():
    x = rows(50, 3)
    model = nn.Linear(FEATURES, 2, bias=False).requires_grad_(False)
    model.weight.copy_(torch.zeros(2, FEATURES))
    model.weight[1, 1:6] = torch.tensor([5.0, -1.0, -5.0, 1.0, 1.0])
    far = ConstrainedAttack(attack=PGD(eps=1.0, step_size=0.5, steps=10), constraints=TABLE)
    near = ConstrainedAttack(attack=PGD(eps=0.3, step_size=0.1, steps=10), constraints=TABLE)
    target = torch.zeros(50, dtype=torch.int64)  # leave class 0: raise the second logit
    moved = far(model, x, target)
    assert (moved[:, 1] == 1).all()  # the best category
    assert torch.equal(moved[:, 4:6], torch.ones(50, 2))
    moved = near(model, x, target)
    assert torch.equal(moved[:, 1:4], x[:, 1:4])
    assert torch.allclose(moved[:, 4], (x[:, 4] + 0.25).clamp_max(1))


def test_immutable_features_take_no_part_of_an_l2_budget():
    x, model = torch.full((1, 2), 0.5), nn.Linear(2, 2, bias=False).requires_grad_(False)
    model.weight.copy_(torch.tensor([[9.0, 1.0], [-9.0, -1.0]]))
    attack = PGD(eps=0.3, step_size=0.1, steps=10, norm="l2")
    found = ConstrainedAttack(attack=attack, constraints=Constraints(immutable=(0,)))(model, x, torch.tensor([0]))
    assert torch.allclose(found, torch.tensor([[0.5, 0.2]]))


def test_a_defence_is_attacked_by_its_own_gradient_rule():
    model = network()
    purifier = soap.purifiers.Hedge(model, eps=0.1, step_size=0.05, steps=3)
    seen = soap.Defence(model, purifier).seen_by("straight-through")
    x = rows(8, 1)
    y = seen(x).argmax(1)
    attack = APGD(eps=0.4, steps=10)
    found = ConstrainedAttack(attack=attack, constraints=TABLE)(seen, x, y)
    assert TABLE.feasible(found, x).all()
    same = ConstrainedAttack(attack=attack, constraints=Constraints())(seen, x, y)
    assert torch.equal(same, attack(seen, x, y))


def test_a_purified_row_is_valid_and_its_loss_is_that_of_the_row_returned():
    model, x = network(), rows(30, 2)
    joint = soap.wrap(model, "reconstruction", shape=(FEATURES,), name="table")
    soap_purifier = soap.SOAP(joint, eps=1.0, step_size=0.3, steps=5)
    out = ConstrainedPurifier(soap_purifier, TABLE)(x)
    assert all(map(is_valid, out.x.tolist(), x.tolist()))
    assert (out.loss_after <= out.loss_before).all()
    with torch.no_grad():
        assert torch.allclose(out.loss_after, soap_purifier.loss(out.x), atol=1e-6)
    assert not torch.equal(out.x, x)
    spec = soap.Defence(joint, ConstrainedPurifier(soap_purifier, TABLE)).purifier.spec()
    assert spec.settings["constraints"]["settings"]["immutable"] == [0]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("change", "words"),
    [((1, 0.5), "row 2 breaks"), ((6, 0.9), "row 2 breaks"), ((2, float("nan")), "row 2 breaks")],
)
def test_rows_that_are_not_valid_are_refused(change, words):
    x = rows(4, 0)
    x[2, change[0]] = change[1]
    with pytest.raises(InputError, match=words):
        TABLE.project(x, x)


@pytest.mark.usefixtures("unchecked_shapes")
def test_other_shapes_are_refused():
    with pytest.raises(InputError, match="expected rows"):
        TABLE.feasible(torch.zeros(2, 5), torch.zeros(2, 5))
    with pytest.raises(InputError, match="expected rows"):
        TABLE.feasible(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8))
