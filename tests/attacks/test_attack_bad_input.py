"""Bad input raises one clear error, before any attack step, with the given and the expected value."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import (
    APGD,
    FGSM,
    PGD,
    Attack,
    AuxiliaryAwarePGD,
    BitFlips,
    CarliniWagner,
    DeepFool,
    HopSkipJump,
    RayS,
    Square,
    Substitute,
    Transfer,
)
from soap.auxiliary import JointModel
from soap.errors import InputError
from soap.evaluation.protocols import Threat

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

X = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2])


def with_value(value: float) -> Tensor:
    x = X.clone()
    x[1, 0, 2, 2] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "got", "wanted"),
    [
        (with_value(torch.nan), Y, "1 NaN or infinite", r"\[0, 1\]"),
        (with_value(torch.inf), Y, "1 NaN or infinite", r"\[0, 1\]"),
        (X * 255, Y, r"span \[.*\]", "divide by 255"),
        (with_value(-0.01), Y, r"span \[-0.01, ", r"expected \[0, 1\]"),
        ((X * 255).to(torch.uint8), Y, "uint8 tensor", "divide 8-bit images by 255"),
        (X.double(), Y, "float64", "float32"),
        (X[0, 0, 0], Y, r"shape \[6\]", "batch dimension"),
        (X.expand(3, 3, 6, 6), Y, r"shape \[3, 3, 6, 6\]", r"takes \[batch, 1, 6, 6\]"),
        (X[:, :, :5], Y, r"shape \[3, 1, 5, 6\]", r"takes \[batch, 1, 6, 6\]"),
        (X[:0], Y[:0], r"empty batch of shape \[0, 1, 6, 6\]", "at least one"),
        (X.to("meta"), Y, "meta", "cpu"),
        (X.numpy(), Y, "ndarray", "float tensor"),
        (X, Y.to("meta"), "labels are on meta", "cpu"),
        (X, Y.float(), "float32 tensor", r"int64 tensor of shape \[3\]"),
        (X, Y[:2], r"shape \[2\]", r"shape \[3\]"),
        (X, Y[:, None], r"shape \[3, 1\]", r"shape \[3\]"),
        (X, Y + 2, r"2\.\.4", "at most 3"),
        (X, Y - 1, r"-1\.\.1", "at least 0"),
        (X, [0, 1, 2], r"list \[0, 1, 2\]", "int64 tensor"),
    ],
)
def test_bad_inputs_and_labels(
    attack: Attack, new_model: Callable[..., JointModel], x: Tensor, y: Tensor, got: str, wanted: str
) -> None:
    with pytest.raises(InputError, match=f"(?s){got}.*{wanted}"):
        attack(new_model(), x, y)


def test_linf_radius_in_levels_of_255_is_refused(new_model: Callable[..., JointModel]) -> None:
    model, words = new_model(), r"eps is 8, expected at most 1; images are in \[0, 1\]: did you mean 8/255\?"
    for attack in (PGD(eps=8, step_size=2, steps=1), FGSM(eps=8), APGD(eps=8, steps=1), Square(eps=8, queries=1)):
        with pytest.raises(InputError, match=words):
            attack(model, X, Y)
    with pytest.raises(InputError, match=words):
        Threat(eps=8)
    assert PGD(eps=8, step_size=2, steps=1, norm="l2")(model, X, Y).shape == X.shape  # radii of L2 may be larger
    wide = PGD(eps=8, step_size=2, steps=1, bounds=(0.0, 255.0))
    assert wide(model, 255 * X, Y).max() <= 255
    with pytest.raises(InputError, match=r"Do your labels count from 1\? Subtract 1"):
        FGSM(eps=0.1)(model, X, Y + 2)


class Detach(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


class Probabilities(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


MODELS: dict[str, tuple[Callable[[nn.Module], Callable[[Tensor], Tensor]], str]] = {
    "probabilities": (Probabilities, "returned probabilities.*expected logits"),
    "one-logit": (lambda model: lambda x: model(x)[:, :1], "returned 1 logit.*at least 2 classes"),
    "three-dimensional": (lambda model: lambda x: model(x)[:, :, None], r"shape \[3, 4, 1\].*shape \[3, classes\]"),
    "one-sample-missing": (lambda model: lambda x: model(x)[1:], r"shape \[2, 4\].*shape \[3, classes\]"),
    "integers": (lambda model: lambda x: model(x).long(), "int64 tensor.*float logits"),
    "none": (lambda model: lambda x: None, "NoneType None.*float logits"),
    "nan": (lambda model: lambda x: model(x) * torch.nan, "NaN or infinite logits.*check its weights"),
}


@pytest.mark.parametrize(("wrap", "message"), MODELS.values(), ids=MODELS)
def test_bad_models(
    attack: Attack, new_model: Callable[..., JointModel], wrap: Callable[[nn.Module], Attack], message: str
) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        attack(wrap(new_model().eval()), X, Y)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: nn.Sequential(Detach(), model),
        lambda model: lambda x: model(x).detach(),
        lambda model: torch.no_grad()(model),
    ],
    ids=["input-detached", "output-detached", "no-grad"],
)
def test_models_without_a_gradient(
    attack: Attack, new_model: Callable[..., JointModel], wrap: Callable[[nn.Module], Callable[[Tensor], Tensor]]
) -> None:
    model = wrap(new_model().eval())
    y = model(X).argmax(1)
    if isinstance(attack, BitFlips | HopSkipJump | RayS | Square | Transfer):  # they use logits or labels only
        attack(model, X, y)
        return
    wanted = "JointModel" if isinstance(attack, AuxiliaryAwarePGD) else "differentiable in its input"
    with pytest.raises(InputError, match=wanted):
        attack(model, X, y)


PLAIN = {"eps": 0.1, "step_size": 0.1, "steps": 1}


@pytest.mark.parametrize(
    ("attack", "settings", "message"),
    [
        (FGSM, {"eps": -0.1}, "eps is -0.1, expected a number of at least 0"),
        (FGSM, {"eps": float("nan")}, "eps is nan"),
        (PGD, PLAIN | {"eps": -0.1}, "eps is -0.1, expected a number of at least 0"),
        (PGD, PLAIN | {"step_size": 0.0}, "step_size is 0.0, expected a number above 0"),
        (PGD, PLAIN | {"steps": 0}, "steps is 0, expected a whole number of at least 1"),
        (PGD, PLAIN | {"steps": 1.5}, "steps is 1.5, expected a whole number"),
        (PGD, PLAIN | {"restarts": 0}, "restarts is 0, expected a whole number of at least 1"),
        (PGD, PLAIN | {"norm": "l3"}, "norm is 'l3', expected one of 'linf', 'l2', 'l1'"),
        (PGD, PLAIN | {"start": "noise"}, "start is 'noise', expected one of 'zero', 'random'"),
        (PGD, PLAIN | {"keep": "first"}, "keep is 'first', expected one of 'last', 'best'"),
        (PGD, PLAIN | {"loss": "mse"}, "loss is 'mse', expected one of 'ce', 'margin'"),
        (APGD, {"eps": -0.1}, "eps is -0.1, expected a number of at least 0"),
        (APGD, {"eps": 0.1, "steps": 0}, "steps is 0, expected a whole number of at least 1"),
        (APGD, {"eps": 0.1, "norm": "l3"}, "norm is 'l3', expected one of 'linf', 'l2', 'l1'"),
        (APGD, {"eps": 0.1, "loss": "mse"}, "loss is 'mse', expected one of 'ce', .*'targeted-dlr', 'targeted-margin'"),
        (APGD, {"eps": 0.1, "targets": 0}, "targets is 0, expected a whole number of at least 1"),
        (APGD, {"eps": 0.1, "start": "noise"}, "start is 'noise', expected one of 'zero', 'random'"),
        (APGD, {"eps": 0.1, "restarts": 0}, "restarts is 0, expected"),
        (APGD, {"eps": 0.1, "rho": float("nan")}, "rho is nan, expected"),
        (APGD, {"eps": 0.1, "seed": -1}, "seed is -1, expected"),
        (
            APGD,
            {"eps": 0.1, "loss": "targeted-dlr", "targeted": True},
            "targeted=True use one of 'ce', 'margin', 'dlr'",
        ),
        (Square, {"eps": float("inf")}, "eps is inf, expected a number of at least 0"),
        (Square, {"eps": 0.1, "queries": 0}, "queries is 0, expected a whole number of at least 1"),
        (Square, {"eps": 0.1, "norm": "l1"}, "norm is 'l1', expected one of 'linf', 'l2'"),
        (Square, {"eps": 0.1, "p_init": 0.0}, "p_init is 0.0, .*above 0 and at most 1"),
        (Square, {"eps": 0.1, "p_init": 1.5}, "p_init is 1.5, "),
        (Square, {"eps": 0.1, "loss": "targeted-dlr"}, "loss is 'targeted-dlr', expected one of 'ce'"),
        (Square, {"eps": 0.1, "restarts": 0}, "restarts is 0, expected"),
        (Square, {"eps": 0.1, "seed": 0.5}, "seed is 0.5, expected"),
        (CarliniWagner, {"radius": -1.0}, "radius is -1.0, expected a number of at least 0"),
        (CarliniWagner, {"confidence": -1.0}, "confidence is -1.0, expected"),
        (CarliniWagner, {"search_steps": 0}, "search_steps is 0, expected"),
        (CarliniWagner, {"steps": 0}, "steps is 0, expected"),
        (CarliniWagner, {"lr": 0.0}, "lr is 0.0, expected a number above 0"),
        (CarliniWagner, {"initial_c": float("inf")}, "initial_c is inf, expected"),
        (DeepFool, {"radius": float("nan")}, "radius is nan, expected"),
        (DeepFool, {"steps": 0}, "steps is 0, expected"),
        (DeepFool, {"overshoot": -0.1}, "overshoot is -0.1, expected"),
        (DeepFool, {"candidates": 1}, "candidates is 1, expected a whole number of at least 2"),
        (AuxiliaryAwarePGD, PLAIN | {"beta": 0.0, "eps": -1.0}, "eps is -1.0, expected"),
        (AuxiliaryAwarePGD, PLAIN | {"beta": 0.0, "step_size": -1.0}, "step_size is -1.0, expected"),
        (AuxiliaryAwarePGD, PLAIN | {"beta": 0.0, "steps": 0}, "steps is 0, expected"),
        (AuxiliaryAwarePGD, PLAIN | {"beta": float("inf")}, "beta is inf, expected a finite"),
        (AuxiliaryAwarePGD, PLAIN | {"beta": 0.0, "keep": "all"}, "keep is 'all', expected one of"),
        (Substitute, {"network": "cnm"}, "unknown architecture 'cnm'; did you mean .*cnn"),
        (Substitute, {"seeds": 1}, "seeds is 1, expected a whole number of at least 2"),
        (Substitute, {"rounds": -1}, "rounds is -1, expected"),
        (Substitute, {"augment_step": -0.1}, "augment_step is -0.1, expected"),
        (Substitute, {"epochs": 0}, "epochs is 0, expected"),
        (Substitute, {"lr": -1.0}, "lr is -1.0, expected"),
        (Substitute, {"batch_size": 1}, "batch_size is 1, expected"),
        (Substitute, {"seed": -1}, "seed is -1, expected"),
    ],
)
def test_bad_settings(attack: Callable[..., object], settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attack(**settings)


def test_auxiliary_aware_attack_needs_an_auxiliary_task(new_model: Callable[..., JointModel]) -> None:
    attack = AuxiliaryAwarePGD(**PLAIN, beta=1.0)
    joint = new_model()
    with pytest.raises(InputError, match=r"got a Sequential, .* expected a JointModel"):
        attack(nn.Sequential(joint.encoder, joint.classifier), X, Y)
    joint.task = None
    with pytest.raises(InputError, match="small was trained without an auxiliary task"):
        attack(joint, X, Y)


def test_square_needs_images() -> None:
    with pytest.raises(InputError, match=r"shape \[3, 36\], but Square needs images \[batch, channels"):
        Square(eps=0.1)(nn.Linear(36, 4), X.flatten(1), Y)


@pytest.mark.parametrize(
    ("classes", "attack"),
    [
        (2, APGD(eps=0.1, loss="dlr")),
        (3, APGD(eps=0.1, loss="targeted-dlr")),
        (2, PGD(**PLAIN, loss="dlr")),
        (2, Square(eps=0.1, loss="dlr")),
    ],
)
def test_dlr_losses_need_three_or_four_classes(classes: int, attack: Attack) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, classes))
    with pytest.raises(InputError, match=f"{classes} classes, but the loss .* 'margin' or 'ce'"):
        attack(model, X, Y.clamp_max(1))


def test_logits_are_checked_again_after_weights_change(new_model: Callable[..., JointModel]) -> None:
    model, attack = new_model(), FGSM(eps=0.1)
    attack(model, X, Y)
    with torch.no_grad():
        next(model.classifier.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="NaN or infinite logits"):
        attack(model, X, Y)


def test_number_of_classes_is_read_again_after_the_head_is_replaced() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    FGSM(eps=0.1)(model, X, Y.clamp_max(2))
    model[1] = nn.Linear(36, 5)
    FGSM(eps=0.1)(model, X, torch.full_like(Y, 4))
