"""What the routes answer is what the library says, and everything a page needs to show a walk."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from small_service import MODELS, png

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from soap.attacks import FGSM, PGD
from soap.evaluation import PAPER
from soap.purifiers import SOAP
from soap.serve.operations import climbed

KIND = {"Content-Type": "image/png"}


def pixels(text):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(base64.b64decode(text))))).float()[None] / 255


def labels(model, x):
    with torch.no_grad():
        return model(x).argmax(1)


def test_predict_gives_the_models_own_probabilities(client, model, digits):
    for row in range(3):
        answer = client.post("/v1/predict", content=png(digits.x[row]), headers=KIND).json()
        with torch.no_grad():
            wanted = model(digits.x[row : row + 1]).softmax(1)[0]
            loss = model.auxiliary.loss(model, digits.x[row : row + 1]).item()
        assert answer["model"] == MODELS[0]
        assert answer["class"] == int(wanted.argmax())
        assert answer["name"] == str(answer["class"])
        assert answer["probabilities"] == pytest.approx(wanted.tolist(), abs=2e-6)
        assert answer["aux_loss"] == pytest.approx(loss, rel=1e-4)
        assert answer["input"] is None


def test_predict_shows_the_picture_as_the_model_gets_it(client, digits):
    answer = client.post("/v1/predict?pictures=true&invert=true", content=png(digits.x[0]), headers=KIND).json()
    assert torch.equal(pixels(answer["input"]), (255 - (digits.x[0] * 255).round()) / 255)


def test_json_and_png_of_the_same_digit_have_the_same_answer(client, digits):
    x = digits.x[4]
    wanted = client.post("/v1/predict", content=png(x), headers=KIND).json()
    for image in (x.tolist(), x[0].tolist()):
        found = client.post("/v1/predict", json={"image": image}).json()
        assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=2e-6)
    upside = client.post("/v1/predict?invert=true", json={"image": (1 - x).tolist()}).json()
    assert upside["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-4)


def test_a_model_without_a_task_answers_without_losses(client, digits):
    path = f"/v1/attack?model={MODELS[1]}&attack=fgsm"
    answer = client.post(path, content=png(digits.x[0]), headers=KIND).json()
    assert answer["model"] == MODELS[1]
    assert answer["aux_loss_before"] is None
    assert [step["aux_loss"] for step in answer["steps"]] == [None, None]


@pytest.mark.parametrize("eps", ["min-aux", 0.2])
def test_purify_walks_as_the_purifier_does(client, model, digits, eps):
    x = PAPER["mnist"]["pgd"](model, digits.x[:2], digits.y[:2])
    for row in range(2):
        one = (x[row : row + 1] * 255).round() / 255
        answer = client.post(f"/v1/purify?eps_pfy={eps}&pictures=true", content=png(one[0]), headers=KIND).json()
        purifier = SOAP(model, eps)
        wanted, path = purifier(one), purifier.path(one)[:, 0]
        assert answer["eps"] == pytest.approx(wanted.eps.item())
        assert answer["class"] == int(labels(model, wanted.x))
        assert answer["before"]["class"] == int(labels(model, one))
        assert answer["aux_loss_before"] == pytest.approx(wanted.loss_before.item(), rel=1e-4)
        assert answer["aux_loss_after"] == pytest.approx(wanted.loss_after.item(), rel=1e-4)
        assert len(answer["steps"]) == len(path) == 6
        for step, point, label in zip(answer["steps"], path, labels(model, path).tolist(), strict=True):
            assert (step["class"], step["top"][0]["class"]) == (label, label)
            assert [part["probability"] for part in step["top"]] == sorted(
                (part["probability"] for part in step["top"]), reverse=True
            )
            assert (pixels(step["picture"]) - point).abs().max() < 0.51 / 255
            assert step["probabilities"][label] == step["probability"] == max(step["probabilities"])
            assert sum(step["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert [step["step"] for step in answer["steps"]] == list(range(6))
        assert torch.equal(pixels(answer["input"]), one[0])
        assert answer["steps"][0]["aux_loss"] == answer["aux_loss_before"]
        assert answer["steps"][-1]["picture"] == answer["image"]


@pytest.mark.parametrize("attack", [PGD(eps=0.3, step_size=0.01, steps=40), PGD(eps=0.1, step_size=0.03, steps=4)])
def test_the_steps_of_an_attack_are_those_of_the_attack_itself(model, digits, attack):
    points = climbed(attack, model, digits.x, digits.y)
    assert len(points) == attack.steps + 1
    assert torch.equal(points[0], digits.x)
    assert torch.equal(points[-1], attack(model, digits.x, digits.y))


METHODS = {
    "fgsm": FGSM(eps=0.3),
    "fgsm&eps=0.05": FGSM(eps=0.05),
    "pgd": PAPER["mnist"]["pgd"],
    "pgd&eps=0.2&steps=7": PGD(eps=0.2, step_size=0.01, steps=7),
    "df": PAPER["mnist"]["df"],
}


@pytest.mark.parametrize("query", METHODS)
def test_attack_returns_the_picture_that_it_speaks_of(client, model, digits, query):
    method = METHODS[query]
    answer = client.post(f"/v1/attack?attack={query}&label=3", content=png(digits.x[3]), headers=KIND).json()
    image = pixels(answer["image"])
    wanted = method(model, digits.x[3:4], digits.y[3:4])
    assert (image - wanted[0]).abs().max() < 1.01 / 255
    assert answer["class"] == int(labels(model, image[None]))
    assert answer["fooled"] == (answer["class"] != 3)
    assert answer["label"] == 3
    assert answer["attack"] == repr(method)
    assert answer["eps"] == getattr(method, "eps", None)
    assert answer["linf"] == pytest.approx(float((image - digits.x[3]).abs().max()), abs=1e-6)
    assert answer["l2"] == pytest.approx(float((image - digits.x[3]).norm()), rel=1e-4)
    assert answer["linf"] <= (answer["eps"] or 1) + 1e-6
    assert len(answer["steps"]) == 1 + (method.steps if isinstance(method, PGD) else 1)
    assert {(step["picture"], step["probabilities"]) for step in answer["steps"]} == {(None, None)}


def test_an_attack_without_a_label_leads_away_from_what_the_model_sees(client, model, digits):
    answer = client.post("/v1/attack", content=png(digits.x[5]), headers=KIND).json()
    assert answer["label"] == answer["before"]["class"] == int(labels(model, digits.x[5:6]))
    assert answer["fooled"]


def test_attack_then_purify_by_their_pictures_brings_the_label_back(client, digits):
    """The whole demonstration, through 8-bit pictures."""
    back = 0
    for row in range(6):
        hurt = client.post(f"/v1/attack?label={row}", content=png(digits.x[row]), headers=KIND).json()
        again = client.post("/v1/purify", content=base64.b64decode(hurt["image"]), headers=KIND).json()
        assert again["before"]["class"] == hurt["class"]
        assert again["aux_loss_after"] <= again["aux_loss_before"]
        back += hurt["fooled"] and again["class"] == row
    assert back >= 3


def test_models_are_described(client, model):
    first, second = client.get("/v1/models").json()["models"]
    assert (first["name"], second["name"]) == tuple(MODELS)
    assert first["input_shape"] == [1, 28, 28]
    assert first["classes"] == [str(label) for label in range(10)]
    assert first["purification"]["grid"] == pytest.approx(model.purification.grid)
    assert set(first["attacks"]) == {"fgsm", "pgd", "df"}
    assert first["attacks"]["pgd"] == {"eps": 0.3, "step_size": 0.01, "steps": 40}
    assert (second["purifiable"], second["task"], second["purification"]) == (False, None, None)
