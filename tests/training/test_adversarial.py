"""Adversarial training through the purifier, and TRADES."""

import dataclasses

import pytest
import torch
from test_certified import binary_model, quarters
from tiny import noise_images, state_of, tiny_model
from torch.nn import functional as F

import soap
from soap.attacks import FGSM, PGD
from soap.auxiliary import Binarity, Purification
from soap.auxiliary.binarity import ends_at_rounded, rounded, rounded_box
from soap.training import AdversarialTraining, Schedule, train
from soap.training.joint_step import JointStep

EPS = 0.3
ATTACK = PGD(eps=EPS, step_size=0.24, steps=5, start="random")
THROUGH = AdversarialTraining(attack=ATTACK, through="purifier")
TRADES = dataclasses.replace(THROUGH, trades_beta=6.0)
SCHEDULE = Schedule(epochs=2, lr=0.05, batch_size=8, augment=("affine", "shift"))


@pytest.mark.parametrize("training", [THROUGH, TRADES], ids=["cross-entropy", "trades"])
def test_images_of_a_step_are_purified_images_of_the_ball(training):
    model = binary_model().eval()
    x, y = noise_images(16, seed=3), torch.arange(16) % 4
    before = state_of(model)
    found = training.perturb(model, x, y)
    assert state_of(model) == before
    low, high = rounded_box(x, EPS)
    assert ((found == low) | (found == high)).all()
    # An image of the ball that the model's own purifier, taking its steps, maps to the result.
    reached = torch.where(found == high, x + EPS, x - EPS).clamp(0, 1)
    kept = found == rounded(x)
    reached = torch.where(kept, x, reached)
    assert (reached - x).abs().max() <= EPS + 1e-6
    assert torch.equal(soap.SOAP(model)(reached).x, found)


def test_attack_through_rounding_raises_the_loss_of_the_defence_more_than_straight_through():
    """On a network that was trained on rounded images; the same PGD with the same start."""
    model, data = binary_model(), quarters(256)
    step = JointStep(model.train(), data.x, data.y, SCHEDULE)
    for number in range(40):
        step(torch.arange(64) + 64 * (number % 4), seed=number, rate=0.05, step=number)
    model.eval()
    x, y = 0.8 * data.x + 0.15, data.y  # greyer: more pixels can cross one half
    defence = soap.Defence(model, soap.SOAP(model))
    losses = [
        F.cross_entropy(defence(images), y).item()
        for images in (x, ATTACK(defence, x, y), THROUGH.perturb(model, x, y))
    ]
    assert losses == sorted(losses)
    assert losses[2] > losses[0] + 0.1


@pytest.mark.parametrize("task", ["reconstruction", "consistency"])
def test_other_tasks_are_attacked_through_the_steps_of_their_purifier(task):
    model, x, y = tiny_model(task), noise_images(8, seed=4), torch.arange(8) % 4
    purify = soap.SOAP(model)
    wanted = purify(ATTACK(soap.Defence(model, purify), x, y)).x
    assert torch.equal(THROUGH.perturb(model, x, y), wanted)
    assert not torch.equal(THROUGH.perturb(model, x, y), ATTACK(model, x, y))


def test_purifier_that_does_not_reach_black_and_white_is_not_replaced_by_rounding():
    model = binary_model().eval()
    assert ends_at_rounded(model)
    assert isinstance(model.task, Binarity)
    x, y = noise_images(8, seed=4), torch.arange(8) % 4
    for settings in ({"steps": 3}, {"grid": (0.25, 0.5)}):
        model.purification = Purification(**{"step_size": 0.125, "steps": 5, "grid": (0.5,), **settings})
        assert not ends_at_rounded(model)
        purify = soap.SOAP(model)
        assert torch.equal(THROUGH.perturb(model, x, y), purify(ATTACK(soap.Defence(model, purify), x, y)).x)


def test_l2_attack_goes_through_the_steps_of_the_purifier():
    """The interval of a pixel that rounding is relaxed on belongs to Linf."""
    model, x, y = binary_model().eval(), noise_images(8, seed=4), torch.arange(8) % 4
    attack = PGD(eps=1.0, step_size=0.3, steps=3, norm="l2")
    found = AdversarialTraining(attack=attack, through="purifier").perturb(model, x, y)
    assert torch.equal(found, rounded(attack(soap.Defence(model, soap.SOAP(model)), x, y)))


@pytest.mark.parametrize("training", [THROUGH, TRADES], ids=["cross-entropy", "trades"])
def test_twenty_steps_lower_the_loss(training):
    model, data = binary_model().train(), quarters(256)
    step = JointStep(model, data.x, data.y, SCHEDULE, attack=training)
    seen = []
    for number in range(20):
        step(torch.arange(64) + 64 * (number % 4), seed=number, rate=0.05, step=number)
        seen.append(step.sums[0].item())
        step.sums.zero_()
    assert sum(seen[-4:]) < 0.7 * sum(seen[:4])


@pytest.mark.parametrize(
    ("new_model", "training"),
    [(binary_model, THROUGH), (binary_model, TRADES), (tiny_model, THROUGH)],
    ids=["cross-entropy", "trades", "reconstruction"],
)
def test_stopped_training_resumes_to_the_same_bits(new_model, training, tmp_path):
    whole, part, again = new_model(), new_model(), new_model()
    data = quarters(32)
    train(whole, data, SCHEDULE, out=tmp_path / "whole", attack=training)
    steps = iter(range(100))
    train(part, data, SCHEDULE, out=tmp_path / "part", attack=training, stop=lambda: next(steps) >= 3)
    with pytest.raises(soap.InputError, match="attack differ"):
        train(again, data, SCHEDULE, out=tmp_path / "part", attack=ATTACK, resume=True)
    train(again, data, SCHEDULE, out=tmp_path / "part", attack=training, resume=True)
    states = [model.state_dict() for model in (whole, again)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_trades_loss_and_attack_equal_their_formula():
    model, x, y = tiny_model(), noise_images(8, seed=4), torch.arange(8) % 4
    training = AdversarialTraining(attack=PGD(eps=0.1, step_size=0.1, steps=1, start="random"), trades_beta=2.0)
    with torch.no_grad():
        clean = model(x)
    start = x + 0.1 * (2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) - 1)
    start = start.clamp(0, 1).requires_grad_()
    (clean.softmax(1) * (clean.log_softmax(1) - model(start).log_softmax(1))).sum().backward()
    wanted = (start.detach() + 0.1 * start.grad.sign()).clamp(x - 0.1, x + 0.1).clamp(0, 1)
    found = training.perturb(model, x, y)
    torch.testing.assert_close(found, wanted)
    losses = training.trades_losses(model, x, found, y)
    with torch.no_grad():
        logits = model(found)
        divergence = (clean.softmax(1) * (clean.log_softmax(1) - logits.log_softmax(1))).sum(1).mean()
        torch.testing.assert_close(losses.classification, F.cross_entropy(clean, y) + 2 * divergence)
    assert losses.accuracy == (logits.argmax(1) == y).float().mean()
    assert torch.equal(training.purified(model, x), x)


BAD = [
    ({"through": "purifer"}, "through is 'purifer'"),
    ({"trades_beta": 0.0}, "trades_beta is 0.0"),
    ({"attack": FGSM(eps=0.0)}, "eps is 0.0"),
    ({"attack": FGSM(eps=EPS), "trades_beta": 6.0}, r"TRADES got FGSM\(eps=0.3\); expected PGD with"),
    ({"attack": dataclasses.replace(ATTACK, restarts=2)}, "restarts is 2; expected 1"),
    ({"attack": dataclasses.replace(ATTACK, start="zero"), "trades_beta": 6.0}, "no gradient at the clean image"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_settings_raise(change, message):
    with pytest.raises(soap.InputError, match=message):
        dataclasses.replace(THROUGH, **change)


def test_model_that_does_not_fit_raises_before_any_work(tmp_path):
    plain, unset, trained = binary_model(), binary_model(), tiny_model()
    plain.task, unset.purification = None, None
    for model, training, message in (
        (plain, THROUGH, "binary has no purifier to train through"),
        (unset, THROUGH, "binary has no purifier to train through"),
        (trained, TRADES, "TRADES replaces the losses of the task Reconstruction of tiny-reconstruction"),
        (binary_model(), dataclasses.replace(TRADES, through="classifier"), "the losses of the task Binarity"),
    ):
        with pytest.raises(soap.InputError, match=message):
            train(model, quarters(16), SCHEDULE, out=tmp_path / "out", attack=training)
    assert not (tmp_path / "out").exists()


def test_recipe_reads_the_settings_and_trains(tmp_path):
    recipe = soap.recipes.read("mnist-cnn-soap-at")
    assert recipe.adversarial == THROUGH
    trades = soap.recipes.parse(recipe.text.replace("steps = 5\nstart", "steps = 5\ntrades_beta = 6\nstart"), "x")
    assert trades.adversarial == TRADES
    for old, new, message in (
        ('through = "purifier"', 'through = "all"', "through is 'all'"),
        ('through = "purifier"', "through = true", "through is True; expected a string"),
        ("step_size = 0.24", "stepsize = 0.24", r"unknown key in \[adversarial\] 'stepsize'; did you mean step_size"),
    ):
        with pytest.raises(soap.InputError, match=f"^x: .*{message}"):
            soap.recipes.parse(recipe.text.replace(old, new), "x")
    digits = soap.data.load("mnist-mini", "train").take(64)
    short = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, epochs=1, batch_size=32))
    done = soap.recipes.make(short, digits, out=tmp_path, device=torch.device("cpu"))
    assert done.finished
    assert ends_at_rounded(soap.load(tmp_path / "last.safetensors"))


def test_random_starts_differ_between_steps():
    """An attack with its own seed drew the same random numbers at every step."""
    starts = []

    @dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
    class Recorded(PGD):
        def perturb(self, model, x, y, *, start=None):
            starts.append(super().perturb(lambda point: 0 * model(point), x, y, start=start) - x)
            return x

    model, data = tiny_model(), noise_images(8, seed=1)
    attack = Recorded(eps=0.3, step_size=0.1, steps=1, start="random")
    schedule = dataclasses.replace(SCHEDULE, augment=())
    step = JointStep(model, data, torch.arange(8) % 4, schedule, attack=attack)
    for seed in (3, 4, 3):
        step(torch.arange(8), seed=seed, rate=0.0)
    assert starts[0].any()
    assert not torch.equal(starts[0], starts[1])
    assert torch.equal(starts[0], starts[2])


@pytest.mark.gpu
@pytest.mark.parametrize("training", [ATTACK, THROUGH, TRADES], ids=["random start", "purifier", "trades"])
def test_recorded_steps_equal_plain_steps(training):
    """A CUDA graph draws the random starts anew at every replay, as plain steps do."""
    weights = []
    for recordable in (False, True):
        model = binary_model().cuda().train()
        model.recordable = recordable
        data = quarters(64)
        step = JointStep(model, data.x.cuda(), data.y.cuda(), SCHEDULE, attack=training)
        for number in range(12):
            step(torch.arange(16).cuda() + 16 * (number % 4), seed=number, rate=0.05, step=number)
        assert (step._graph is not None) == recordable
        weights.append(torch.cat([value.flatten() for value in model.parameters()]))
    assert torch.allclose(*weights, atol=1e-3)
