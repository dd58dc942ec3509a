"""Responses of the routes equal the results of the library, and hold what the page shows."""

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
from soap.serve.trajectories import pgd_points

PNG = {"Content-Type": "image/png"}


def pixels(text):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(base64.b64decode(text))))).float()[None] / 255


def labels(model, x):
    with torch.no_grad():
        return model(x).argmax(1)


def test_predict_returns_the_probabilities_of_the_model(client, model, digits):
    for row in range(3):
        response = client.post("/v1/predict", content=png(digits.x[row]), headers=PNG).json()
        with torch.no_grad():
            wanted = model(digits.x[row : row + 1]).softmax(1)[0]
            loss = model.auxiliary.loss(model, digits.x[row : row + 1]).item()
        assert response["model"] == MODELS[0]
        assert response["class"] == int(wanted.argmax())
        assert response["name"] == str(response["class"])
        assert response["probabilities"] == pytest.approx(wanted.tolist(), abs=2e-6)
        assert response["aux_loss"] == response["score"] == pytest.approx(loss, rel=1e-4)
        assert response["input"] is None


def test_predict_returns_the_picture_as_the_model_receives_it(client, digits):
    response = client.post("/v1/predict?pictures=true&invert=true", content=png(digits.x[0]), headers=PNG).json()
    assert torch.equal(pixels(response["input"]), (255 - (digits.x[0] * 255).round()) / 255)


def test_json_and_png_of_a_digit_give_the_same_probabilities(client, digits):
    x = digits.x[4]
    wanted = client.post("/v1/predict", content=png(x), headers=PNG).json()
    for image in (x.tolist(), x[0].tolist()):
        found = client.post("/v1/predict", json={"image": image}).json()
        assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=2e-6)
    inverted = client.post("/v1/predict?invert=true", json={"image": (1 - x).tolist()}).json()
    assert inverted["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-4)


def test_model_without_auxiliary_task_returns_null_losses(client, digits):
    path = f"/v1/attack?model={MODELS[1]}&attack=fgsm"
    response = client.post(path, content=png(digits.x[0]), headers=PNG).json()
    assert response["model"] == MODELS[1]
    assert response["aux_loss_before"] is None
    assert response["score"] is None
    assert [step["aux_loss"] for step in response["steps"]] == [None, None]


@pytest.mark.parametrize("eps", ["min-aux", 0.2])
def test_purify_returns_the_iterates_of_the_purifier(client, model, digits, eps):
    x = PAPER["mnist"]["pgd"](model, digits.x[:2], digits.y[:2])
    for row in range(2):
        one = (x[row : row + 1] * 255).round() / 255
        response = client.post(f"/v1/purify?eps_pfy={eps}&pictures=true", content=png(one[0]), headers=PNG).json()
        purifier = SOAP(model, eps)
        wanted, path = purifier(one), purifier.path(one)[:, 0]
        assert response["eps"] == pytest.approx(wanted.eps.item())
        assert response["class"] == int(labels(model, wanted.x))
        assert response["before"]["class"] == int(labels(model, one))
        assert response["score"] == response["aux_loss_before"] == pytest.approx(wanted.loss_before.item(), rel=1e-4)
        assert response["aux_loss_after"] == pytest.approx(wanted.loss_after.item(), rel=1e-4)
        assert len(response["steps"]) == len(path) == 6
        for step, point, label in zip(response["steps"], path, labels(model, path).tolist(), strict=True):
            assert (step["class"], step["top"][0]["class"]) == (label, label)
            assert [part["probability"] for part in step["top"]] == sorted(
                (part["probability"] for part in step["top"]), reverse=True
            )
            assert (pixels(step["picture"]) - point).abs().max() < 0.51 / 255
            assert step["probabilities"][label] == step["probability"] == max(step["probabilities"])
            assert sum(step["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert [step["step"] for step in response["steps"]] == list(range(6))
        assert torch.equal(pixels(response["input"]), one[0])
        assert response["steps"][0]["aux_loss"] == response["aux_loss_before"]
        assert response["steps"][-1]["picture"] == response["image"]


@pytest.mark.parametrize("attack", [PGD(eps=0.3, step_size=0.01, steps=40), PGD(eps=0.1, step_size=0.03, steps=4)])
def test_pgd_points_end_where_the_attack_ends(model, digits, attack):
    points = pgd_points(attack, model, digits.x, digits.y)
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
def test_attack_numbers_belong_to_the_returned_picture(client, model, digits, query):
    method = METHODS[query]
    response = client.post(f"/v1/attack?attack={query}&label=3", content=png(digits.x[3]), headers=PNG).json()
    image = pixels(response["image"])
    wanted = method(model, digits.x[3:4], digits.y[3:4])
    assert (image - wanted[0]).abs().max() < 1.01 / 255
    assert response["class"] == int(labels(model, image[None]))
    assert response["fooled"] == (response["class"] != 3)
    assert response["label"] == 3
    assert response["attack"] == repr(method)
    assert response["eps"] == getattr(method, "eps", None)
    assert response["linf"] == pytest.approx(float((image - digits.x[3]).abs().max()), abs=1e-6)
    assert response["l2"] == pytest.approx(float((image - digits.x[3]).norm()), rel=1e-4)
    assert response["linf"] <= (response["eps"] or 1) + 1e-6
    assert len(response["steps"]) == 1 + (method.steps if isinstance(method, PGD) else 1)
    assert {(step["picture"], step["probabilities"]) for step in response["steps"]} == {(None, None)}


def test_attack_without_label_uses_the_prediction(client, model, digits):
    response = client.post("/v1/attack", content=png(digits.x[5]), headers=PNG).json()
    assert response["label"] == response["before"]["class"] == int(labels(model, digits.x[5:6]))
    assert response["fooled"]


def test_purifying_an_attacked_picture_restores_labels(client, digits):
    """Through 8-bit pictures, as the page does it."""
    restored = 0
    for row in range(6):
        attacked = client.post(f"/v1/attack?label={row}", content=png(digits.x[row]), headers=PNG).json()
        purified = client.post("/v1/purify", content=base64.b64decode(attacked["image"]), headers=PNG).json()
        assert purified["before"]["class"] == attacked["class"]
        assert purified["aux_loss_after"] <= purified["aux_loss_before"]
        restored += attacked["fooled"] and purified["class"] == row
    assert restored >= 3


def test_models_route_describes_each_model(client, model):
    first, second = client.get("/v1/models").json()["models"]
    assert (first["name"], second["name"]) == tuple(MODELS)
    assert first["input_shape"] == [1, 28, 28]
    assert first["classes"] == [str(label) for label in range(10)]
    assert first["purification"]["grid"] == pytest.approx(model.purification.grid)
    assert set(first["attacks"]) == {"fgsm", "pgd", "df"}
    assert first["attacks"]["pgd"] == {"eps": 0.3, "step_size": 0.01, "steps": 40}
    assert (second["purifiable"], second["task"], second["purification"]) == (False, None, None)
