"""The examples with an own purifier, and those that attack a Defence with another library."""

import importlib
import logging
import warnings
from pathlib import Path

import pytest
import torch

from soap._runtime.isolation import preserved_random_state

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["own_purifier", "attack_with_foolbox", "attack_with_autoattack"])
def test_main_of_an_example_has_at_most_ten_lines(name):
    body = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").split("def main")[1].split("\n\n\n")[0]
    assert len(body.splitlines()) <= 10


def test_own_purifier_is_evaluated_by_a_suite(tmp_path):
    out = tmp_path / "run"
    line = importlib.import_module("own_purifier").main(n=12, suite="exact", out=out, steps=5, batch_size=12)
    assert line.startswith("worst ")
    assert "of 12 images: CHECKS WARNED" in line
    assert (out / "attempts" / "00" / "0000.npz").exists()


def test_foolbox_lowers_the_accuracy():
    with warnings.catch_warnings():  # foolbox imports deprecated names of scipy
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("foolbox")
    with preserved_random_state():  # its random start is drawn from the global state
        torch.manual_seed(0)
        accuracy = importlib.import_module("attack_with_foolbox").main(n=30, eps=0.3, steps=10)
    assert accuracy["clean"] > 0.85
    assert accuracy["attacked"] < accuracy["clean"]


@pytest.mark.usefixtures("unchecked_shapes")  # hundreds of purifications
def test_autoattack_lowers_the_accuracy():
    pytest.importorskip("pyautoattack")
    logging.disable(logging.CRITICAL)
    try:
        with preserved_random_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of defences that optimise at inference
            accuracy = importlib.import_module("attack_with_autoattack").main(n=8, attacks=("apgd-ce",))
    finally:
        logging.disable(logging.NOTSET)
    assert accuracy["clean"] > 0.85
    assert accuracy["attacked"] < accuracy["clean"]


def test_attack_through_rounding_leaves_as_much_of_a_model_as_of_its_own_mean(monkeypatch):
    example = importlib.import_module("attack_through_rounding")
    monkeypatch.setattr(example, "STEPS", 20)
    left = example.main(["mnist-cnn-certified"], images=16)
    assert 0.3 < left < 1.0  # the certificate holds for 87 % of 1,000 digits, some of the 16 among them
    assert example.main(["mnist-cnn-certified", "mnist-cnn-certified"], images=16) == left
