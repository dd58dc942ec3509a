"""The verdict and its line, by the rules of the specification."""

import made_up
import pytest

from soap.evaluation.adaptive.checks import findings
from soap.evaluation.adaptive.summary import summarise
from soap.evaluation.adaptive.verdict import NOTHING, TRUSTED, UPPER, Verdict, headline, missing_protocols, verdict

NO_STEPS = dict.fromkeys(("bpda-trajectory", "unrolled"), "the purifier does not tell its steps")
NO_PURIFIER = dict.fromkeys(("bpda", "bpda-start", "bpda-trajectory", "unrolled"), "there is no purifier")
PLAIN = {"purifies": False, "left_out": NO_PURIFIER, "facts": {"optimisation": {"purifier": False, "gradients": 0}}}


def without(*names: str) -> dict[str, int]:
    return {name: standing for name, standing in made_up.LEFT.items() if name not in names}


@pytest.mark.parametrize(
    ("differs", "name", "reason"),
    [
        ({}, TRUSTED, None),
        ({"left": without("noise")}, TRUSTED, None),
        ({"left": without("bpda-start")}, TRUSTED, None),
        ({"facts": {"doubled-steps": {"moved": 0.01}}}, UPPER, "check 8, converged: accuracy moves by 1.00 points"),
        ({"facts": {"doubled-steps": None}}, UPPER, "check 8, converged: not measured"),
        ({"facts": {"planted": {"broken": 10}}}, NOTHING, "check 16, planted weakness found: 50.0 %"),
        ({"left": without("autoattack")}, UPPER, "autoattack was not run"),
        ({"left": without("unrolled")}, UPPER, "unrolled was not run"),
        ({"left": without("bpda-trajectory", "unrolled"), "left_out": NO_STEPS}, TRUSTED, None),
        ({"drop": ("black-box",)}, UPPER, "black-box was not run"),
        ({"left": {"transfer": 12}}, UPPER, "check 4, optimisation at inference"),
        ({"left": {**without(*NO_PURIFIER), "black-box": 12}, **PLAIN}, TRUSTED, None),
        ({"left": without(*NO_PURIFIER, "black-box"), **PLAIN}, UPPER, "black-box was not run"),
    ],
)
def test_verdict(differs, name, reason, tmp_path):
    folder, data = made_up.run(tmp_path, **differs), made_up.images()
    spoken = verdict(findings(folder, data), summarise(folder, data))
    assert spoken.name == name, spoken
    assert (spoken.reasons == ()) == (reason is None)
    assert reason is None or spoken.reasons[0].startswith(reason)


def test_what_is_missing_by_name(tmp_path):
    folder, data = made_up.run(tmp_path, left={"transfer": 12}), made_up.images()
    assert missing_protocols(summarise(folder, data)) == [
        "bpda", "bpda-trajectory", "unrolled", "autoattack", "black-box",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spoken", "line"),
    [
        (Verdict(name=TRUSTED, reasons=()), "worst 35.0 % [18.1, 56.7] of 20 images: TRUSTED BOUND"),
        (Verdict(name=UPPER, reasons=("a",)), "worst 35.0 % [18.1, 56.7] of 20 images: UPPER BOUND ONLY (a)"),
        (
            Verdict(name=NOTHING, reasons=("a", "b", "c")),
            "no figure of 20 images: NOT A ROBUSTNESS NUMBER (a; and 2 more)",
        ),
    ],
)
def test_headline(spoken, line, tmp_path):
    assert headline(summarise(made_up.run(tmp_path), made_up.images()), spoken) == line
