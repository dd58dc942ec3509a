"""Every way to differentiate the consistency loss against its plain reading; its rows, and those found again."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from tiny import noise_images, state_of, tiny_model
from torch.nn import functional as F

from soap import SOAP, InputError, recipes
from soap.attacks import FGSM, PGD
from soap.auxiliary import second_view
from soap.auxiliary.consistency import GRADIENTS
from soap.data import Dataset
from soap.evaluation import PAPER, Clean, evaluate_transfer
from soap.paper.gradient_variants import VARIANTS, variant
from soap.paper.rows import committed_rows
from soap.paper.sweeps import GRADIENT_ATTACKS as ATTACKS
from soap.paper.sweeps import SWEEPS
from soap.results import Store
from soap.specs import attack_spec

SIDE = 16
OWN_VIEW = ("exact-bilinear", "paper-crop-30")
QUICK = {"none": Clean(), "fgsm": FGSM(eps=0.2), "pgd": PGD(eps=0.2, step_size=0.1, steps=3)}


@pytest.fixture(scope="module")
def exact_model():
    return tiny_model("consistency", side=SIDE, dtype=torch.float64)


@pytest.fixture(scope="module")
def x():
    return noise_images(2, side=SIDE, seed=4, dtype=torch.float64)


def slope(loss, x):
    point = x.clone().requires_grad_()
    value = loss(point)
    return value.detach(), torch.autograd.grad(value.sum(), point)[0]


def loss_of(name, model):
    return lambda x: variant(name).loss(model, x)


def sample(n: int = 11, name: str = "noise") -> Dataset:
    x = noise_images(n, seed=2)
    y = tiny_model("consistency")(x).argmax(1)
    y[::5] = (y[::5] + 1) % 4
    return Dataset(name=name, split="test", x=x, y=y, classes=tuple("abcd"), sha256="e" * 64)


# --- Gradients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in OWN_VIEW])
def test_the_loss_is_the_same_where_the_views_are(name, exact_model, x):
    by_hand = (exact_model(x) - exact_model(second_view(x))).square().mean(1)
    torch.testing.assert_close(variant(name).loss(exact_model, x), by_hand)


def test_the_parts_through_either_view_add_up_to_the_exact_gradient(exact_model, x):
    parts = {name: slope(loss_of(name, exact_model), x)[1] for name in ("stop", "view-two", "exact")}
    torch.testing.assert_close(parts["stop"] + parts["view-two"], parts["exact"])
    assert min(part.abs().max() for part in parts.values()) > 0

    target = exact_model(x).detach()
    _, by_hand = slope(lambda point: (target - exact_model(second_view(point))).square().mean(1), x)
    torch.testing.assert_close(parts["view-two"], by_hand)


def test_the_blurred_gradient_is_the_exact_one_averaged_over_3_by_3_pixels(exact_model, x):
    _, exact = slope(loss_of("exact", exact_model), x)
    _, blurred = slope(loss_of("exact-blurred", exact_model), x)
    padded = np.pad(exact.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    by_hand = sum(padded[:, :, i : i + SIDE, j : j + SIDE] for i in range(3) for j in range(3)) / 9
    np.testing.assert_allclose(blurred.numpy(), by_hand, rtol=1e-9, atol=1e-15)


def bilinear(crop: np.ndarray, side: int) -> np.ndarray:
    """Output pixel j lies at (j + 1/2) n / m - 1/2 of the input, held inside it, between its two neighbours."""
    n = crop.shape[-1]
    weights = np.zeros((side, n))
    for j in range(side):
        at = min(max((j + 0.5) * n / side - 0.5, 0), n - 1)
        low = int(at)
        weights[j, low] += 1 - (at - low)
        weights[j, min(low + 1, n - 1)] += at - low
    return weights @ crop @ weights.T


def test_the_bilinear_view_and_its_true_gradient(exact_model, x):
    value, gradient = slope(loss_of("exact-bilinear", exact_model), x)
    crop = np.flip(x.numpy(), 3)[:, :, 1:15, 1:15]  # 14 of 16 pixels, as 28 of 32
    view = torch.from_numpy(bilinear(crop, SIDE))
    torch.testing.assert_close(view, F.interpolate(x.flip(3)[:, :, 1:15, 1:15], size=SIDE, mode="bilinear"))
    torch.testing.assert_close(value, (exact_model(x) - exact_model(view)).square().mean(1).detach())
    for index in range(0, SIDE * SIDE, 7):
        step = torch.zeros(SIDE * SIDE, dtype=torch.float64)
        step[index] = 1e-6
        ahead, behind = (variant("exact-bilinear").loss(exact_model, x + k * step.view(x[0].shape)) for k in (1, -1))
        torch.testing.assert_close(gradient.view(2, -1)[:, index], (ahead - behind) / 2e-6, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize(("side", "crop"), [(32, 30), (16, 15)])
def test_a_larger_crop_and_its_floor_indexed_gradient(side, crop):
    model = tiny_model("consistency", side=side, dtype=torch.float64)
    x = noise_images(2, side=side, seed=5, dtype=torch.float64)
    value, gradient = slope(loss_of("paper-crop-30", model), x)
    first = (side - crop) // 2
    view = torch.empty_like(x)
    for i, j in itertools.product(range(side), repeat=2):
        view[:, :, i, j] = x[:, :, first + i * crop // side, side - 1 - (first + j * crop // side)]
    torch.testing.assert_close(value, (model(x) - model(view)).square().mean(1).detach())

    one, two = x.clone().requires_grad_(), view.clone().requires_grad_()
    direct, through = torch.autograd.grad((model(one) - model(two)).square().mean(1).sum(), (one, two))
    for i, k in itertools.product(range(crop), repeat=2):  # what PyTorch 1.4.0 let each pixel of the crop collect
        rows = slice(i * side // crop, (i + 1) * side // crop)
        columns = slice(k * side // crop, (k + 1) * side // crop)
        direct[:, :, first + i, side - 1 - (first + k)] += through[:, :, rows, columns].sum((2, 3))
    torch.testing.assert_close(gradient, direct)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_rows_gradient_does_not_depend_on_its_batch_mates(name, exact_model):
    x = noise_images(4, side=SIDE, seed=6, dtype=torch.float64)
    value, gradient = slope(loss_of(name, exact_model), x)
    for k in range(4):
        alone = slope(loss_of(name, exact_model), x[k : k + 1])
        torch.testing.assert_close((value[k : k + 1], gradient[k : k + 1]), alone)


# --- Rows ---------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_transfer_protocol_and_are_found_again():
    model, data = tiny_model("consistency"), sample()
    before = state_of(model)
    rows = SWEEPS["gradients"].measure(model, data, QUICK, batch_size=4)
    assert state_of(model) == before
    assert model.auxiliary.gradient == "paper"
    assert len(rows) == len(ATTACKS) * (1 + len(VARIANTS))
    found = SWEEPS["gradients"].find(rows, model.name)
    assert set(found) == set(itertools.product(ATTACKS, VARIANTS))
    assert len({row.defence for row in found.values()}) == len(VARIANTS)  # replays are told apart by it, too
    for name in GRADIENTS:
        usual = tiny_model("consistency")
        usual.auxiliary.gradient = name
        for row in evaluate_transfer(usual, data, QUICK, [SOAP(usual)])[1::2]:
            ours = found[row.attack.name, name]
            assert (ours.key, ours.correct) == (row.key, row.correct)
    x_adv = QUICK["pgd"](model, data.x, data.y)
    for name in ("view-two", "exact-bilinear"):
        row = found["pgd", name]
        losses = variant(name).loss(model, x_adv).detach()
        assert row.measures["mean_loss_before"] == pytest.approx(losses.mean().item(), rel=1e-5)
        assert row.measures["mean_loss_after"] < row.measures["mean_loss_before"]
        purifier = SOAP(model)
        purifier.task = variant(name)
        with torch.no_grad():
            assert row.correct == int((model(purifier(x_adv).x).argmax(1) == data.y).sum())


def test_the_names_are_those_of_the_tables_rows():
    """The bundled rows of Table 2 serve here without being measured again."""
    recipe = recipes.read("cifar10-resnet18-lc")
    found = SWEEPS["gradients"].find(committed_rows(), recipe.name)
    for name in ("paper", "stop"):
        row = found["pgd", name]
        assert row.defence == recipes.purifier_spec(recipe, "min-aux", name)
        assert row.attack == attack_spec("pgd", PAPER["cifar10"]["pgd"])


def test_the_attacks_are_the_papers_and_rows_are_measured_once(tmp_path, monkeypatch):
    attacks = QUICK | {"cw": None, "df": None}
    model, data, store = tiny_model("consistency"), sample(3, "cifar10"), Store(tmp_path / "rows.jsonl")
    rows = SWEEPS["gradients"].measure(model, data, attacks, store=store)
    assert [row.attack for row in rows[:: 1 + len(VARIANTS)]] == [attack_spec(*item) for item in QUICK.items()]
    monkeypatch.setattr(PGD, "perturb", None)  # a call would fail
    assert SWEEPS["gradients"].measure(model, data, attacks, store=store) == rows == store.read()


def changed(defence, **settings):
    return dataclasses.replace(defence, settings={**defence.settings, **settings})


def test_other_purifiers_are_not_taken_for_variants():
    model, data = tiny_model("consistency"), sample(3)
    rows = SWEEPS["gradients"].measure(model, data, QUICK)
    others = evaluate_transfer(model, data, QUICK, [SOAP(model, eps="oracle"), SOAP(model, eps=0.1)])
    changes = (
        {"protocol": "auxiliary-aware"},
        {"attack": dataclasses.replace(rows[1].attack, name="df")},
        {"model": "other"},
        {"defence": changed(rows[1].defence, precision="bf16")},
        {"defence": changed(rows[1].defence, task={"gradient": "other"})},
    )
    others += [dataclasses.replace(rows[1], **change) for change in changes]
    assert SWEEPS["gradients"].find(others, model.name) == {}
    assert SWEEPS["gradients"].find([*others, *rows], model.name) == SWEEPS["gradients"].find(rows, model.name)
    gradients = [row.defence.settings.get("task", {}).get("gradient") for row in rows]
    two = [row for row, gradient in zip(rows, gradients, strict=True) if gradient in ("stop", "paper")]
    longer = [dataclasses.replace(row, n=100, correct=50) for row in two]
    assert len(SWEEPS["gradients"].find([*longer, *rows], model.name)) == 21  # one run, the one with most cells
    assert len(SWEEPS["gradients"].find([*longer, *rows[:4]], model.name)) == 6


def test_an_unknown_variant():
    with pytest.raises(InputError, match=r"unknown gradient variant 'blurred'.*exact-blurred"):
        variant("blurred")


@pytest.mark.gpu
def test_every_variant_replays_as_it_runs():
    model = tiny_model("consistency").cuda()
    x = noise_images(16).cuda()
    purifier = SOAP(model)
    for name in VARIANTS:
        purifier.task = variant(name)
        ends = []
        for recordable in (False, True):
            model.recordable = recordable
            ends.append(purifier(x).x)
        assert ((ends[0] - ends[1]).abs() <= 1e-6).float().mean() >= 0.99, name
