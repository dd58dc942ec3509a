"""The progress bar of `fit`, `tune` and `evaluate` in Python; tests/cli/test_cli_console.py tests that of commands."""

import io
import sys

import rich.console
import rich.live
from test_own_network import network, pets

import soap
from soap._runtime import progress


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
