"""The examples that bring a purifier of one's own, or attack a defended network with another library."""

import importlib
import logging
import warnings
from pathlib import Path

import pytest
import torch

from soap._runtime.isolation import preserved_random_state

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["own_purifier", "attack_with_foolbox", "attack_with_autoattack"])
def test_ten_lines_are_enough(name):
    body = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").split("def main")[1].split("\n\n\n")[0]
    assert len(body.splitlines()) <= 10


def test_a_purifier_of_one_s_own(tmp_path):
    out = tmp_path / "run"
    said = importlib.import_module("own_purifier").main(n=12, suite="bpda", out=out, steps=5, batch=12)
    assert said.startswith("worst ")
    assert "of 12 images: UPPER BOUND ONLY" in said
    assert (out / "attempts" / "00" / "0000.npz").exists()


def test_foolbox_breaks_what_is_right_when_clean():
    with warnings.catch_warnings():  # foolbox imports scipy by names of old
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("foolbox")
    with preserved_random_state():  # its random start is drawn from the global state
        torch.manual_seed(0)
        accuracy = importlib.import_module("attack_with_foolbox").main(n=30, eps=0.3, steps=10)
    assert accuracy["clean"] > 0.85
    assert accuracy["attacked"] < accuracy["clean"]


@pytest.mark.usefixtures("unchecked_shapes")  # hundreds of purifications
def test_autoattack_breaks_what_is_right_when_clean():
    pytest.importorskip("pyautoattack")
    logging.disable(logging.CRITICAL)
    try:
        with preserved_random_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of defences that optimise, as it should
            accuracy = importlib.import_module("attack_with_autoattack").main(n=8, attacks=("apgd-ce",))
    finally:
        logging.disable(logging.NOTSET)
    assert accuracy["clean"] > 0.85
    assert accuracy["attacked"] < accuracy["clean"]
