"""The progress bar of purifiers, `fit`, `tune` and `evaluate` in Python; tests/cli/test_cli_console.py: of commands."""

import io
import sys

import pytest
import rich.console
import rich.live
from test_own_network import network, pets
from tiny import noise_images, tiny_model

import soap
from soap._runtime import progress
from soap.models import DDPM, Generator
from soap.models.pixelcnn import PixelCNN


@pytest.fixture
def screen(monkeypatch):
    """What a terminal shows."""
    shown = io.StringIO()
    terminal = rich.console.Console(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr(rich.console, "Console", lambda **settings: terminal)
    return shown


def purifiers():
    model, pixels = tiny_model(), PixelCNN(inputs=(1, 8, 8), channels=4, blocks=1, mixtures=1)
    return {
        "soap": soap.SOAP(model),
        "hedge": soap.purifiers.Hedge(model, steps=1),
        "defense-gan": soap.purifiers.DefenseGAN(Generator(latent=3, width=4, inputs=(1, 8, 8)), steps=1, starts=1),
        "pixel-defend": soap.purifiers.PixelDefend(pixels, 2 / 255),
        "diffusion": soap.purifiers.DiffPure(DDPM(inputs=(1, 8, 8), width=8, steps=20), t_star=2, steps=2),
    }


@pytest.mark.parametrize("name", purifiers())
def test_a_purifier_shows_a_bar_when_it_takes_long(name, screen, monkeypatch):
    purify, x = purifiers()[name], noise_images(130)
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 1000.0)
    purify(x)
    assert screen.getvalue() == ""
    monkeypatch.setattr(progress, "SHOW_AFTER_S", -1.0)
    purify(x, progress=False)
    assert screen.getvalue() == ""
    purify(x)
    assert "purifying" in screen.getvalue()


def test_no_bar_of_a_purifier_inside_another_call(screen, monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "SHOW_AFTER_S", -1.0)
    model, data = tiny_model(), pets(40)
    defence = soap.Defence(model, soap.SOAP(model))
    defence(data.x)
    soap.attacks.PGD(eps=0.1, step_size=0.1, steps=1)(defence, data.x, data.y)
    soap.evaluate(defence, data, attacks={"fgsm": soap.attacks.FGSM(eps=0.1)}, progress=False)
    assert screen.getvalue() == ""
    soap.evaluate(defence, data, attacks={"fgsm": soap.attacks.FGSM(eps=0.1)})
    assert "fgsm" in screen.getvalue()
    assert "purifying" not in screen.getvalue()


def test_fit_tune_and_evaluate_show_a_bar_on_a_terminal_unless_it_is_turned_off(tmp_path, monkeypatch):
    shown = {}
    for enabled in (True, False):
        screen = io.StringIO()
        terminal = rich.console.Console(file=screen, force_terminal=True, width=100)
        monkeypatch.setattr(rich.console, "Console", lambda terminal=terminal, **settings: terminal)
        model, data, folder = soap.wrap(network(), "reconstruction", shape=(1, 8, 8)), pets(12), tmp_path / str(enabled)
        soap.fit(model, data, out=folder, epochs=1, progress=enabled)
        soap.tune(model, data, 0.1, gammas=(0.5,), steps=(1,), progress=enabled)
        attacks = {"fgsm": soap.attacks.FGSM(eps=0.1)}
        soap.evaluate(soap.Defence(model), data, attacks=attacks, progress=enabled)
        shown[enabled] = screen.getvalue()
    assert all(words in shown[True] for words in ("training", "epoch 1/1", "gamma and T", "fgsm"))
    assert shown[False] == ""


def test_no_bar_without_rich_or_inside_another_display(monkeypatch):
    screen = rich.console.Console(file=io.StringIO(), force_terminal=True)
    with rich.live.Live(console=screen), progress.progress_bar(console=screen) as show:
        show("work", 1, 2)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress.progress_bar() as show:
        show("work", 1, 2, "note")
