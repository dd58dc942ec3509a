"""Measurements against known results: closed forms, counted calls, models with a known flaw."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flaws import with_noise
from small_nets import BY_NAME, THREAT, Changed, digits, judge, judged, linear, quick_and
from torch import Tensor, nn
from torch.autograd import grad

from soap.attacks import APGD, Attack
from soap.data.dataset import make_dataset
from soap.defence import Defence
from soap.errors import InputError
from soap.evaluation.attempts import run_attempts
from soap.evaluation.checks import MEASUREMENTS, measurements_of, run_measurements
from soap.evaluation.checks.bare_classifier import first_layer, passes
from soap.evaluation.checks.context import Nearest
from soap.evaluation.checks.optimisation import optimisation_counted
from soap.evaluation.plan import PlannedRun, Threat, plan_attempts
from soap.evaluation.protocols import DEFAULT_EFFORT
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.summary_builder import SummaryBuilder
from soap.gradient_rules import FiniteLogits, logits_and_gradient, with_finite_logits


def test_the_quick_suite_makes_cheap_measurements_only():
    costly = {one.fact for one in MEASUREMENTS} - {one.fact for one in measurements_of("quick")}
    assert costly == {"doubled-steps", "doubled-restarts", "unbounded", "radii", "planted", "repeat", "eot"}
    assert measurements_of("full") == MEASUREMENTS


def test_nearest_finds_the_image_of_a_point_in_any_order():
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


def test_optimisation_is_counted_for_every_way_to_call_autograd():
    x = digits(4).x
    for inside, gradients, steps in ((inner_gradient, 1, 0), (inner_optimiser, 2, 2), (torch.square, 0, 0)):
        with optimisation_counted() as seen, torch.no_grad():
            inside(x)
        assert (seen["gradients"], seen["steps"]) == (gradients, steps)
    with optimisation_counted() as seen:
        pass
    inner_gradient(x)  # not counted
    assert seen["gradients"] == 0


def test_changed_weights_are_counted(tmp_path):
    class Adapts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = linear()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.net(x)

    run = judged(Adapts(), tmp_path, "optimisation")
    assert run.folder.read_fact("optimisation")["weights_changed"] == 1
    assert 4 in run.flagged()


def test_passes_are_counted_per_image():
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
    assert counted == {"forward": 3, "backward": 2}


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_linear_net_at_every_radius(norm, tmp_path):
    """The closed form: an image stands where its smallest margin exceeds what the ball can do to it."""
    threat = Threat(eps=0.02 if norm == "linf" else 0.4, norm=norm)
    attack = APGD(eps=threat.eps, norm=norm, steps=4, loss="margin")
    run = judged(linear(), tmp_path, "radii", "unbounded", threat=threat, attack=attack)
    found, data = run.folder.read_fact("radii"), digits()
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
    assert run.folder.read_fact("unbounded")["standing"] == 0
    assert run.folder.read_fact("unbounded")["eps"] == (1 if norm == "linf" else 28)


@pytest.mark.parametrize("leave", [False, True])
def test_the_loss_curve_rises_and_survivors_decrease(tmp_path, leave):
    """Images that left the attack once left the mean, too, and the curve fell and jumped."""
    attack = APGD(eps=THREAT.eps, steps=12, start="zero", leave_when_fooled=leave)
    run = judged(linear(), tmp_path, "loss-curve", attack=attack)
    found = run.folder.read_fact("loss-curve")
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
    found = idle.folder.read_fact("planted")
    assert (found["planted"], found["broken"]) == (30, 0)
    assert 16 in idle.flagged()
    works = judged(linear(), tmp_path / "works", "planted").folder.read_fact("planted")
    assert (works["planted"], works["broken"]) == (30, 30)
    assert works["by_chance"] <= 1


def test_hidden_gradients_hide_the_planted_weakness(tmp_path):
    run = judged(Changed(Tensor.detach), tmp_path, "planted")
    found = run.folder.read_fact("planted")
    assert found["planted"] == 30
    assert found["broken"] < 3
    assert 16 in run.flagged()


def test_a_weakness_is_planted_behind_a_purifier(tmp_path):
    defence = Defence(linear(), lambda x: (x * 8).round() / 8, name="bits")
    planned = plan_attempts(defence, THREAT, "straight-through", effort=DEFAULT_EFFORT.changed(steps=6))[:1]
    run = judge(defence, tmp_path, planned=planned, measurements=[BY_NAME["planted"]], suite="straight-through")
    found = run.folder.read_fact("planted")
    assert found["planted"] >= 25
    assert found["broken"] >= 0.95 * found["planted"]


def test_no_weakness_is_planted_where_logits_are_constant(tmp_path):
    run = judged(Changed(lambda x: 0 * x + 0.5), tmp_path, "planted")
    assert "no weakness could be planted" in run.folder.read_fact("planted")["problem"]


def test_predictions_that_depend_on_the_batch_are_counted(tmp_path):
    run = judged(Changed(lambda x: 0.6 * x + 0.4 * x[:1]), tmp_path, "repeat")
    found = run.folder.read_fact("repeat")
    assert found["different_images"] == 0
    assert found["different_decisions"] > 0
    alone = judged(linear(), tmp_path / "alone", "repeat").folder.read_fact("repeat")
    assert (alone["different_images"], alone["different_decisions"]) == (0, 0)


def test_the_strongest_attempt_is_adaptive(tmp_path):
    defence = Defence(linear(), lambda x: x, name="nothing")
    planned = [
        *with_noise(APGD(eps=THREAT.eps, steps=6)),
        *plan_attempts(defence, THREAT, "straight-through", effort=DEFAULT_EFFORT.changed(steps=4)),
    ]
    run = judge(defence, tmp_path, planned=planned, measurements=[BY_NAME["single-step"], BY_NAME["best-iterate"]])
    assert run.folder.read_fact("single-step")["protocol"] == "straight-through"
    assert "on straight-through" in run.folder.read_fact("best-iterate")["attack"]


def test_measurements_need_an_attempt_with_gradient_steps(tmp_path):
    defence = Defence.of_module(linear(), name="linear")
    run = judge(
        defence,
        tmp_path,
        planned=plan_attempts(defence, THREAT, "noise"),
        suite="noise",
        measurements=quick_and(8, 10, 16),
    )
    for name in ("gradient", "best-iterate", "doubled-steps", "unbounded", "planted"):
        assert "no attempt of this suite uses gradient steps" in run.folder.read_fact(name)["problem"]


@pytest.mark.parametrize(
    ("net", "broken"),
    [
        (Changed(Tensor.detach), True),
        (nn.Sequential(linear(), nn.Softmax(1)), True),
        (nn.Sequential(linear(), nn.Threshold(0, torch.inf)), True),
        (linear(), False),
    ],
)
def test_models_that_attacks_reject_are_wrapped(net, broken):
    x, y = digits(8).x, digits(8).y
    made = with_finite_logits(net, x)
    assert isinstance(made, FiniteLogits) == broken
    logits, direction = logits_and_gradient(made, x, lambda z: z[:, 0])
    assert torch.isfinite(logits).all()
    assert torch.isfinite(direction).all()
    assert torch.equal(logits.argmax(1), net(x).argmax(1))
    APGD(eps=0.1, steps=2)(made, x, y)


def test_measurements_stop_and_resume(tmp_path):
    run = PlannedRun(
        defence=Defence.of_module(linear(), name="linear"), data=digits(10), threat=THREAT, suite="quick",
        attempts=with_noise(APGD(eps=THREAT.eps, steps=2)),
    )  # fmt: skip
    folder = RunFolder(tmp_path)
    assert run_attempts(run, folder, stop=lambda: True) is None
    with pytest.raises(InputError, match="attempts of this run are not done"):
        run_measurements(run, folder, SummaryBuilder(run.content, run.data).summary())
    summary = run_attempts(run, folder)
    done: list[str] = []
    watch, stop = (lambda what, *counts: done.append(what)), (lambda: len(done) == 2)
    assert not run_measurements(run, folder, summary, watch=watch, stop=stop)
    assert done == ["measuring outputs", "measuring determinism"]
    assert folder.read_fact("optimisation") is None
    assert run_measurements(run, folder, summary)
    assert all(folder.read_fact(one.fact) is not None for one in measurements_of("quick"))


@pytest.mark.gpu
def test_measurements_on_a_gpu_agree_with_the_cpu(tmp_path):
    import soap

    found = {}
    for device in ("cpu", "cuda"):
        model = soap.load("mnist-fcn-dr", device=device)
        defence, threat = Defence(model, soap.SOAP(model)), Threat(eps=0.3)
        planned = plan_attempts(defence, threat, "straight-through", effort=DEFAULT_EFFORT.changed(steps=4))[:1]
        run = judge(
            defence, tmp_path / device, planned=planned, measurements=MEASUREMENTS, suite="straight-through",
            threat=threat, data=digits(20).to(device),
        )  # fmt: skip
        found[device] = {one.fact: run.folder.read_fact(one.fact) for one in MEASUREMENTS}
        assert not any("problem" in fact for fact in found[device].values()), found[device]
    assert found["cuda"]["optimisation"] == found["cpu"]["optimisation"]
    for kind in ("forward", "backward"):
        assert found["cuda"]["cost"]["defended"][kind] == found["cpu"]["cost"]["defended"][kind]


def test_measurements_work_on_one_class_and_flat_inputs(tmp_path):
    """No measurement needs inputs with the shape of images."""
    generator = np.random.default_rng(0)
    data = make_dataset(
        "flat", "test", generator.random((12, 6)).astype(np.float32), np.zeros(12, np.int64), ("a", "b")
    )
    net = nn.Linear(6, 2)
    net.weight.data, net.bias.data = torch.tensor([[0.0] * 6, [1.0] * 6]), torch.tensor([5.0, 0.0])
    defence, threat = Defence.of_module(net, name="flat"), Threat(eps=0.1)
    planned = with_noise(APGD(eps=0.1, steps=3))
    run = judge(defence, tmp_path, planned=planned, measurements=MEASUREMENTS, data=data, threat=threat)
    facts = {one.fact: run.folder.read_fact(one.fact) for one in MEASUREMENTS}
    assert not any("problem" in fact for fact in facts.values()), facts
