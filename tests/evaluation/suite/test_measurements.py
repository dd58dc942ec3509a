"""Probes against what is known: closed forms, counted calls, models made to be caught."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flaws import with_noise
from small_nets import BY_NAME, THREAT, Changed, digits, judge, judged, linear, quick_and
from torch import Tensor, nn
from torch.autograd import grad

from soap.attacks import APGD, Attack
from soap.data.dataset import dataset
from soap.errors import InputError
from soap.evaluation.adaptive.attackable import Attackable, attackable
from soap.evaluation.adaptive.attempts import Threat, attempts
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.probes import PROBES, of_suite, run_probes
from soap.evaluation.adaptive.probes.inference import first_layer, passes, watched
from soap.evaluation.adaptive.probes.nearest import Nearest
from soap.evaluation.adaptive.suite import run_attempts
from soap.evaluation.adaptive.target import Target
from soap.gradient_rules import logits_and_gradient


def test_the_quick_suite_makes_the_cheap_probes_alone():
    assert {probe.check for probe in of_suite("quick")} == {2, 3, 4, 5, 6, 7, 12, 15, None}
    assert of_suite("full") == PROBES
    with pytest.raises(InputError, match="unknown suite"):
        of_suite("fast")


def test_points_find_their_image_in_any_order():
    x = digits(30).x
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(30, generator=generator)
    points = (x + 0.3 * (2 * torch.rand(x.shape, generator=generator) - 1)).clamp(0, 1)
    assert torch.equal(Nearest(x=x, norm="linf")(points[order]), order)
    assert torch.equal(Nearest(x=x, norm="l2")((x + 0.01)[order]), order)


def inner_gradient(x: Tensor) -> Tensor:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        return x - 0 * grad(point.square().sum(), point)[0]


def inner_optimiser(x: Tensor) -> Tensor:
    with torch.enable_grad():
        delta = torch.zeros_like(x, requires_grad=True)
        optimiser = torch.optim.SGD([delta], lr=0.1)
        for _ in range(2):
            optimiser.zero_grad()
            (x + delta).square().sum().backward()
            optimiser.step()
    return x + 0 * delta.detach()


def test_optimisation_is_seen_however_it_is_asked_for():
    x = digits(4).x
    for inside, gradients, steps in ((inner_gradient, 1, 0), (inner_optimiser, 2, 2), (torch.square, 0, 0)):
        with watched() as seen, torch.no_grad():
            inside(x)
        assert (seen.gradients, seen.steps) == (gradients, steps)
    with watched() as seen:
        pass
    inner_gradient(x)  # after the watch nobody counts
    assert seen.gradients == 0


def test_weights_that_change_are_seen(tmp_path):
    class Adapts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = linear()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.net(x)

    run = judged(Adapts(), tmp_path, "optimisation")
    assert run.folder.fact("optimisation")["weights_changed"] == 1
    assert 4 in run.flagged()


def test_passes_are_counted_by_rows():
    net = linear()

    def three_views(x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = torch.cat([x, x]).requires_grad_()
            torch.autograd.grad(net(point).sum(), point)
        return net(x)

    x = digits(8).x
    layer = first_layer(net, x)
    assert layer is net[-1]
    with torch.no_grad():
        counted = passes(layer, three_views, x)
    assert (counted.forward, counted.backward) == (3, 2)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_linear_net_at_every_radius(norm, tmp_path):
    """The closed form: an image stands where its smallest margin exceeds what the ball can do to it."""
    threat = Threat(eps=0.02 if norm == "linf" else 0.4, norm=norm)
    attack = APGD(eps=threat.eps, norm=norm, steps=4, loss="margin")
    run = judged(linear(), tmp_path, "radii", "unbounded", threat=threat, attack=attack)
    found, data = run.folder.fact("radii"), digits()
    weight, bias = linear()[-1].weight.detach().double(), linear()[-1].bias.detach().double()
    logits = data.x.flatten(1).double() @ weight.T + bias
    right = torch.nonzero(logits.argmax(1) == data.y)[:30, 0]
    x, y = data.x[right].flatten(1).double(), data.y[right]
    eps = found["eps"][1]
    best = torch.full((len(x),), torch.inf).double()
    for other in range(10):
        way = weight[other] - weight[y]
        room = torch.where(way > 0, (1 - x).clamp_max(eps), x.clamp_max(eps)) if norm == "linf" else None
        gain = (way.abs() * room).sum(1) if room is not None else eps * way.norm(dim=1)  # l2: an upper bound
        margin = logits[right].gather(1, y[:, None])[:, 0] - logits[right, other] - gain
        best = torch.where(y == other, best, torch.minimum(best, margin))
    exact = float((best > 0).double().mean())
    assert found["accuracy"][0] == 1
    assert found["accuracy"][1] == exact if norm == "linf" else found["accuracy"][1] >= exact
    assert len(found["eps"]) == 8
    assert run.folder.fact("unbounded")["standing"] == 0
    assert run.folder.fact("unbounded")["eps"] == (1 if norm == "linf" else 28)


@pytest.mark.parametrize("leave", [False, True])
def test_a_loss_curve_rises_and_images_fall(tmp_path, leave):
    """Images that left the attack once left the mean, too, and the curve fell and jumped."""
    attack = APGD(eps=THREAT.eps, steps=12, start="zero", leave_when_fooled=leave)
    run = judged(linear(), tmp_path, "loss-curve", attack=attack)
    found = run.folder.fact("loss-curve")
    assert len(found["loss"]) == len(found["standing"]) == 13
    assert min(found["loss"][1:]) >= found["loss"][0]
    assert found["loss"][-1] > found["loss"][0]
    assert found["standing"][0] == 1
    assert all(after <= before for before, after in zip(found["standing"], found["standing"][1:], strict=False))


@dataclass(frozen=True, kw_only=True)
class Idle(Attack):
    """Has all the settings of an attack, and does nothing."""

    eps: float
    steps: int = 1

    def perturb(self, model, x, y):
        return x


def test_an_attack_that_does_nothing_misses_the_planted_weakness(tmp_path):
    idle = judged(linear(), tmp_path / "idle", "planted", attack=Idle(eps=THREAT.eps))
    found = idle.folder.fact("planted")
    assert (found["planted"], found["broken"]) == (30, 0)
    assert 16 in idle.flagged()
    works = judged(linear(), tmp_path / "works", "planted").folder.fact("planted")
    assert (works["planted"], works["broken"]) == (30, 30)
    assert works["by_chance"] <= 1


def test_hidden_gradients_hide_the_planted_weakness(tmp_path):
    run = judged(Changed(Tensor.detach), tmp_path, "planted")
    found = run.folder.fact("planted")
    assert found["planted"] == 30
    assert found["broken"] < 3
    assert 16 in run.flagged()


def test_a_weakness_is_planted_behind_a_purifier(tmp_path):
    target = Target.of_parts(linear(), lambda x: (x * 8).round() / 8, name="bits")
    planned = attempts(target, THREAT, "bpda", steps=6)[:1]
    run = judge(target, tmp_path, planned=planned, probes=[BY_NAME["planted"]], suite="bpda")
    found = run.folder.fact("planted")
    assert found["planted"] >= 25
    assert found["broken"] >= 0.95 * found["planted"]


def test_where_nothing_answers_nothing_can_be_planted(tmp_path):
    run = judged(Changed(lambda x: 0 * x + 0.5), tmp_path, "planted")
    assert "no weakness could be planted" in run.folder.fact("planted")["problem"]


def test_batch_mates_that_matter_are_counted(tmp_path):
    run = judged(Changed(lambda x: 0.6 * x + 0.4 * x[:1]), tmp_path, "repeat")
    found = run.folder.fact("repeat")
    assert found["different_images"] == 0
    assert found["different_decisions"] > 0
    alone = judged(linear(), tmp_path / "alone", "repeat").folder.fact("repeat")
    assert (alone["different_images"], alone["different_decisions"]) == (0, 0)


def test_the_strongest_attempt_knows_the_purifier(tmp_path):
    target = Target.of_parts(linear(), lambda x: x, name="nothing")
    planned = [*with_noise(APGD(eps=THREAT.eps, steps=6)), *attempts(target, THREAT, "bpda", steps=4)]
    run = judge(target, tmp_path, planned=planned, probes=[BY_NAME["single-step"], BY_NAME["best-iterate"]])
    assert run.folder.fact("single-step")["protocol"] == "bpda"
    assert "on bpda" in run.folder.fact("best-iterate")["attack"]


def test_a_suite_without_gradient_steps_leaves_nothing_to_vary(tmp_path):
    target = Target.of_module(linear(), name="linear")
    run = judge(target, tmp_path, planned=attempts(target, THREAT, "noise"), suite="noise", probes=quick_and(8, 10, 16))
    for name in ("gradient", "best-iterate", "doubled-steps", "unbounded", "planted"):
        assert "no attempt of this suite goes by gradient steps" in run.folder.fact(name)["problem"]


@pytest.mark.parametrize(
    ("net", "broken"),
    [
        (Changed(Tensor.detach), True),
        (nn.Sequential(linear(), nn.Softmax(1)), True),
        (nn.Sequential(linear(), nn.Threshold(0, torch.inf)), True),
        (linear(), False),
    ],
)
def test_what_attacks_refuse_is_made_attackable(net, broken):
    x, y = digits(8).x, digits(8).y
    made = attackable(net, x)
    assert isinstance(made, Attackable) == broken
    logits, direction = logits_and_gradient(made, x, lambda z: z[:, 0])
    assert torch.isfinite(logits).all()
    assert torch.isfinite(direction).all()
    assert torch.equal(logits.argmax(1), net(x).argmax(1))
    APGD(eps=0.1, steps=2)(made, x, y)


def test_probes_stop_when_asked_and_go_on(tmp_path):
    target, data = Target.of_module(linear(), name="linear"), digits(10)
    planned = with_noise(APGD(eps=THREAT.eps, steps=2))
    folder = RunFolder(tmp_path)
    run_attempts(target, data, THREAT, planned, suite="quick", out=tmp_path, stop=lambda: True)
    with pytest.raises(InputError, match="attempts of this run are not done"):
        run_probes(target, data, THREAT, planned, folder, suite="quick")
    run_attempts(target, data, THREAT, planned, suite="quick", out=tmp_path)
    done: list[str] = []
    stopped = run_probes(
        target, data, THREAT, planned, folder, suite="quick",
        watch=lambda what, *counts: done.append(what), stop=lambda: len(done) == 2,
    )  # fmt: skip
    assert not stopped
    assert done == ["probe outputs", "probe determinism"]
    assert folder.fact("optimisation") is None
    assert run_probes(target, data, THREAT, planned, folder, suite="quick")
    assert all(folder.fact(probe.name) is not None for probe in of_suite("quick"))


@pytest.mark.gpu
def test_probes_on_a_gpu_find_what_they_find_elsewhere(tmp_path):
    import soap

    found = {}
    for device in ("cpu", "cuda"):
        model = soap.load("mnist-fcn-dr", device=device)
        target, threat = Target.of_model(model, soap.SOAP(model)), Threat(eps=0.3)
        planned = attempts(target, threat, "bpda", steps=4)[:1]
        run = judge(target, tmp_path / device, planned=planned, probes=PROBES, suite="bpda", threat=threat,
                    data=digits(20).to(device))  # fmt: skip
        found[device] = {probe.name: run.folder.fact(probe.name) for probe in PROBES}
        assert not any("problem" in fact for fact in found[device].values()), found[device]
    assert found["cuda"]["optimisation"] == found["cpu"]["optimisation"]
    for kind in ("forward", "backward"):
        assert found["cuda"]["cost"]["defended"][kind] == found["cpu"]["cost"]["defended"][kind]


def test_data_of_one_class_and_flat_inputs(tmp_path):
    """Nothing in a probe takes inputs for images."""
    generator = np.random.default_rng(0)
    data = dataset("flat", "test", generator.random((12, 6)).astype(np.float32), np.zeros(12, np.int64), ("a", "b"))
    net = nn.Linear(6, 2)
    net.weight.data, net.bias.data = torch.tensor([[0.0] * 6, [1.0] * 6]), torch.tensor([5.0, 0.0])
    target, threat = Target.of_module(net, name="flat"), Threat(eps=0.1)
    planned = with_noise(APGD(eps=0.1, steps=3))
    run = judge(target, tmp_path, planned=planned, probes=PROBES, data=data, threat=threat)
    facts = {probe.name: run.folder.fact(probe.name) for probe in PROBES}
    assert not any("problem" in fact for fact in facts.values()), facts
