"""`soap evaluate --suite`, `soap report` and `soap verify`, end to end on a few digits."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import soap
from soap import recipes
from soap._files import checksums, tensor_files
from soap.attacks import APGD
from soap.cli import main
from soap.evaluation.verdict import INVALID, PASSED, WARNED
from soap.results import Store, from_json

MODEL = "mnist-fcn-dr"
QUICK = ("evaluate", MODEL, "--suite", "quick", "--data", "mnist-mini", "--limit", "12", "--steps", "2", "--eps", "0.1",
         "--queries", "2", "--batch-size", "8")  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOAP_COMMIT", "test")
        assert main([*QUICK, "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def judge(monkeypatch, verdict):
    """Let every run end with that verdict."""
    from soap.cli import suite

    evaluate = suite.evaluate

    def judged(*arguments, **settings):
        report = evaluate(*arguments, **settings)
        return type(report)(**{**vars(report), "verdict": type(report.verdict)(name=verdict, reasons=())})

    monkeypatch.setattr(suite, "evaluate", judged)


def test_headline_protocols_checks_and_skipped_protocols(run, copied, capsys):
    shown = run(*QUICK, "--out", "run")
    assert shown.code == 0
    lines = [line.strip() for line in shown.out.splitlines()]
    assert lines[0].startswith("worst ")
    assert f"of 12 images: {WARNED}" in lines[0]
    starts = [line.split()[0] for line in lines if line]
    for protocol in ("clean", "noise", "transfer", "iterates", "worst"):
        assert protocol in starts
    assert sum(line.startswith(("PASS", "WARN", "FAIL", "NOT RUN")) and ". " in line for line in lines) == 22
    assert any(line.startswith("Skipped:") and "decision (not in this suite)" in line for line in lines)
    assert "soap report run" in shown.err


NOTE = "No accuracy under attack is shown, because a check failed"
PROTOCOLS = ("noise", "transfer", "iterates", "square", "classifier", "worst")


def test_a_void_run_shows_no_accuracy_under_attack(run, copied, monkeypatch):
    judge(monkeypatch, INVALID)
    shown = run(*QUICK, "--out", "run")
    lines = [line.split() for line in shown.out.splitlines() if line.strip()]
    assert shown.out.startswith("no accuracy of 12 images")
    assert shown.out.count(NOTE) == 1
    assert "stay in the run folder" in " ".join(shown.out.split())
    for protocol in PROTOCOLS:
        (cells,) = [line for line in lines if line[0] == protocol]
        assert cells[1:3] == ["-", "12"]
    checks = [line for line in lines if line[0] in ("PASS", "WARN")]
    assert checks
    assert "The classifier alone" not in shown.out
    found = run(*QUICK, "--out", "run", "--json").json
    assert (found["headline"], found["classifier"], found["rows"]) == (None, None, [])
    assert found["note"].startswith(NOTE)
    assert found["clean"]["accuracy"] is not None
    keys = ("correct", "accuracy", "interval", "worst_of_draws", "majority", "bare")
    assert [line["protocol"] for line in found["protocols"]] == [*PROTOCOLS[:-1]]
    assert all(line[key] is None for line in found["protocols"] for key in keys)
    assert all(one["measured"] is None for one in found["checks"])


@pytest.fixture
def void(copied):
    """The folder of a run whose check 2 failed."""
    outputs = {"images": 12, "finite": False, "probabilities": False, "low": None, "high": None}
    checksums.write_json(copied / "facts" / "outputs.json", outputs)
    return copied


def test_verify_of_a_void_run_shows_no_accuracy_under_attack(run, void):
    found = run("verify", "run", "--json").json
    assert found["holds"] is True
    assert found["note"].startswith(f"{NOTE} (check 2, ")
    for line in found["rows"]:
        assert (line["reported"] is None) == (line["found"] is None) == (line["protocol"] != "clean")
    shown = run("verify", "run").out
    assert NOTE in shown
    lines = [line.split() for line in shown.splitlines() if line.split() and line.split()[0] in PROTOCOLS]
    assert len(lines) == 2 * len(PROTOCOLS) + 1  # the classifier has a worst case of its own
    assert all(line[2:] == ["-", "-", "holds"] for line in lines)


def test_report_and_compare_of_a_void_run_show_no_accuracy_under_attack(run, void):
    assert run("report", "run", "--json").json["verdict"] == INVALID
    assert NOTE in (void / "report.html").read_text(encoding="utf-8")
    assert run("report", "run", "--format", "json").code == 0
    assert json.loads((void / "report.json").read_text())["rows"] == []
    found = run("compare", "run", "run", "--json").json
    assert found["a"]["note"].startswith(NOTE)
    hidden = [line for line in found["protocols"] if line["protocol"] != "clean"]
    assert [line["protocol"] for line in hidden] == [*PROTOCOLS]
    keys = ("accuracy_a", "accuracy_b", "difference", "low", "high", "p_value", "only_a", "only_b")
    assert all(line[key] is None for line in hidden for key in keys)
    shown = run("compare", "run", "run").out
    assert shown.count(NOTE) == 2
    lines = [line.split() for line in shown.splitlines() if line.split() and line.split()[0] in PROTOCOLS]
    assert all(line[1:] == ["-"] * 6 for line in lines)


def test_restarts_and_draws_are_kept_in_the_command(run, copied):
    command = json.loads((copied / "facts" / "asked.json").read_text())["command"]
    assert "--restarts 1 --draws 8 " in command  # the defaults of the quick suite
    other = run(*QUICK, "--limit", "4", "--out", "more", "--restarts", "2", "--draws", "3")
    assert other.code == 0
    assert "--restarts 2 --draws 3 " in json.loads(Path("more/facts/asked.json").read_text())["command"]
    plan = json.loads(Path("more/run.json").read_text())
    own = [one["attack"]["settings"]["restarts"] for one in plan["attempts"] if one["protocol"] == "iterates"]
    assert own == [2] * 3


def test_json_has_the_same_results(run, copied):
    output = run(*QUICK, "--out", "run", "--json", "--quiet").json
    assert output["schema"] == "soap/1"
    assert output["finished"] is True
    assert output["verdict"]["name"] == WARNED
    assert output["verdict"]["reasons"]
    assert [one["number"] for one in output["checks"]] == [*range(1, 23)]
    assert set(output["left_out"]) == {
        "auxiliary-aware", "straight-through", "start", "unrolled", "relaxed", "ends", "exact", "surrogate",
        "autoattack", "substitute", "decision", "extra",
    }  # fmt: skip
    rows = [from_json(row) for row in output["rows"]]
    worst = next(row for row in rows if row.attack.name == "worst" and row.defence.purifies)
    assert output["headline"]["correct"] == worst.correct
    assert output["headline"]["interval"] == list(worst.interval)
    gain, low, high = output["classifier"]["gain"]
    assert low <= gain <= high
    assert gain == pytest.approx((worst.correct - output["classifier"]["correct"]) / worst.n)


@pytest.mark.parametrize(("verdict", "code"), [(WARNED, 3), (PASSED, 0)])
def test_require_passed(run, copied, monkeypatch, verdict, code):
    judge(monkeypatch, verdict)
    assert run(*QUICK, "--out", "run", "--require", "passed").code == code
    assert run(*QUICK, "--out", "run").code == 0


def test_ctrl_c_keeps_finished_work_and_the_same_command_resumes(run, finished, monkeypatch, tmp_path):
    perturb = APGD.perturb

    def interrupted(self, model, x, y):
        signal.raise_signal(signal.SIGINT)
        return perturb(self, model, x, y)

    monkeypatch.setattr(APGD, "perturb", interrupted)
    stopped = run(*QUICK, "--out", "mine")
    assert stopped.code == 130
    assert "run the same command again" in stopped.err
    assert "noise" in stopped.out
    assert "iterates" not in stopped.out
    assert not (tmp_path / "mine" / "rows.jsonl").exists()
    assert run(*QUICK, "--out", "mine", "--json").json["finished"] is False
    monkeypatch.setattr(APGD, "perturb", perturb)
    assert run(*QUICK, "--out", "mine").code == 0
    assert (tmp_path / "mine" / "seal.json").read_bytes() == (finished / "seal.json").read_bytes()


def test_the_stored_command_repeats_the_run(run, copied):
    kept = json.loads((copied / "facts" / "asked.json").read_text())
    again = kept["command"].split()
    assert again[:2] == ["soap", "evaluate"]
    place = again[again.index("--out") + 1]
    elsewhere = [("copy" if part == place else part) for part in again[1:]]
    shutil.copytree(copied, "copy")
    assert run(*elsewhere, "--json").json["finished"] is True


def test_a_suite_without_a_purifier_attacks_the_bare_model(run):
    arguments = ("--suite", "transfer", "--data", "mnist-mini", "--limit", "8", "--steps", "2")
    done = run("evaluate", "mnist-fcn-fgsm-at", *arguments, "--json")
    assert done.code == 0
    assert {row.defence.name for row in Store(Path("runs/mnist-fcn-fgsm-at-transfer/rows.jsonl")).read()} == {"none"}
    assert done.json["threat"] == {"eps": 0.3, "norm": "linf"}  # the paper's
    assert done.json["left_out"]["straight-through"] == "no purifier"
    assert "the bare classifier is attacked" in done.err
    assert run("verify", "runs/mnist-fcn-fgsm-at-transfer").code == 0


EVALUATE = f"evaluate {MODEL} --data mnist-mini --limit 4"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"{EVALUATE} --suite quik", "did you mean quick"),
        (f"{EVALUATE} --suite quick --attack pgd", "--attack excludes --suite"),
        (f"{EVALUATE} --suite quick --results r.jsonl", "--results excludes --suite"),
        (f"{EVALUATE} --suite quick --step-size 0.1", "--step-size excludes --suite"),
        (f"{EVALUATE} --suite quick --save-adversarial a", "--save-adversarial excludes --suite"),
        (f"{EVALUATE} --out r", "--out needs --suite; add it"),
        (f"{EVALUATE} --norm l2", "--norm needs --suite"),
        (f"{EVALUATE} --require passed", "--require needs --suite"),
        (f"{EVALUATE} --queries 5", "--queries needs --suite"),
        (f"{EVALUATE} --restarts 5", "--restarts needs --suite"),
        (f"{EVALUATE} --draws 5", "--draws needs --suite"),
        (f"{EVALUATE} --suite quick --require certain", "expected passed"),
        (f"{EVALUATE} --suite quick --norm l2", "give --eps"),
        (f"{EVALUATE} --suite quick --norm l3 --eps 1", "norm is 'l3'"),
        (f"{EVALUATE} --suite quick --eps 0", "eps is 0.0"),
        (f"{EVALUATE} --suite quick --steps 0", "steps is 0"),
        (f"{EVALUATE} --suite quick --eps-pfy oracle", "it is not a defence"),
        (f"{EVALUATE} --suite quick --eps-pfy 0.1 --eps-pfy 0.2", "one defence, got 2"),
        (f"{EVALUATE} --suite quick --eps-pfy far", "eps_pfy is 'far'"),
        (f"{EVALUATE} --suite quick --gradient stop", "only the task 'consistency'"),
        ("evaluate mnist-fcn-fgsm-at --data mnist-mini --suite quick --eps-pfy 0.1", "without an auxiliary task"),
    ],
)
def test_bad_usage_is_one_line_and_nothing_is_written(run, tmp_path, arguments, said):
    done = run(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert said in done.err
    assert list(tmp_path.iterdir()) == []


def test_another_run_is_not_overwritten(run, copied):
    done = run(*QUICK, "--out", "run", "--seed", "1")
    assert done.code == 2
    assert "holds another run" in done.err


def test_a_page_of_the_run(run, copied, tmp_path):
    done = run("report", "run", "--json")
    assert done.code == 0
    page = Path(done.json["page"])
    assert page == tmp_path / "run" / "report.html"
    text = page.read_text(encoding="utf-8")
    assert done.json["verdict"] == WARNED
    assert WARNED in text
    assert "soap evaluate mnist-fcn-dr" in text
    assert run("report", "run", "--out", "new/page.html").out == f"The page: {tmp_path / 'new' / 'page.html'}\n"
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8") == text


def test_the_path_of_a_page_is_checked(run, copied):
    done = run("report", "run", "--out", "run")
    assert done.code == 1
    assert "expected a file" in done.err


@pytest.mark.parametrize(
    ("name", "file", "start"),
    [("latex", "report.tex", r"\begin{table}"), ("csv", "report.csv", "protocol,"), ("json", "report.json", "{"),
     ("robustbench", "report.robustbench.json", "{"), ("bibtex", "report.bib", "@misc{soap-mnist-fcn-dr-")],
)  # fmt: skip
def test_a_run_in_other_formats(run, copied, name, file, start):
    done = run("report", "run", "--format", name, "--json")
    assert done.json["file"] == str(copied / file)
    assert (copied / file).read_text().startswith(start)
    assert "did you mean" in run("report", "run", "--format", f"{name}x").err


def test_cite_prints_the_entry_of_the_run(run, copied):
    assert run("report", "run", "--format", "bibtex").code == 0
    entry = (copied / "report.bib").read_text()
    assert run("cite", "run").out == entry
    assert run("cite", "run", "--json").json["bibtex"] == entry


def test_verify_reports_a_report_that_holds(run, copied):
    done = run("verify", "run", "--json")
    assert done.code == 0
    assert done.json["holds"] is True
    assert (done.json["changed"], done.json["problems"]) == (0, [])
    assert {one["protocol"] for one in done.json["rows"]} == {
        "clean", "noise", "transfer", "iterates", "square", "classifier", "worst"
    }  # fmt: skip
    assert run("verify", "run").out.endswith("The report holds.\n")


def test_verify_reports_what_does_not_hold(run, copied):
    path = copied / "attempts" / "00" / "0000.npz"
    with np.load(path) as arrays:
        changed = {**arrays, "x": np.roll(arrays["x"], 1, axis=0)}
    np.savez(path, **changed)
    done = run("verify", "run")
    assert done.code == 1
    assert "attempts/00/0000 was changed after the run" in done.out
    assert "images are not in the ball of linf radius 0.1" in done.out
    assert done.out.endswith("The report DOES NOT HOLD.\n")


def test_verify_detects_other_weights(run, copied, tmp_path):
    recipe = recipes.read(MODEL)
    tensor_files.save_tensors(
        tmp_path / "other.safetensors", recipes.build(recipe).state_dict(), {"recipe": recipe.text}
    )
    done = run("verify", "run", "--model", "other.safetensors")
    assert done.code == 1
    assert "the weights of the run" in done.out


@pytest.mark.parametrize("name", ["report", "verify"])
def test_a_folder_without_a_run_is_refused(run, copied, name):
    assert "no such file" in run(name, "nowhere").err
    (copied / "run.json").write_text("{}")
    done = run(name, "run")
    assert (done.code, done.out) == (1, "")
    assert "give the folder of a run" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("name", ["report", "verify"])
@pytest.mark.parametrize("kept", ["[]", '{"model": "x"}', '{"command": 3}', "{"])
def test_a_damaged_request_is_an_error(run, copied, name, kept):
    (copied / "facts" / "asked.json").write_text(kept)
    done = run(name, "run")
    assert done.code == 1
    assert "asked.json" in done.err


def test_a_run_made_from_python_is_verified_by_its_plan(run, copied):
    (copied / "facts" / "asked.json").unlink()
    assert run("verify", "run").code == 0
    assert run("report", "run").code == 0


def test_a_run_of_ones_own_purifier_or_data_names_the_call_in_python(run, some, tmp_path):
    model, few = soap.load(MODEL), some.take(4)
    own = {
        "purifier": (soap.Defence(model, lambda x: x.round(decimals=1)), few),
        "network": (soap.Defence(nn.Sequential(nn.Flatten(), nn.Linear(784, 10))), few),
        "same-radius": (soap.Defence(model, soap.SOAP(model, 0.1, steps=1)), few),
        "data": (soap.Defence(model), replace(few, name="mine")),
    }
    for name, (defence, data) in own.items():
        soap.evaluate(defence, data, suite="noise", eps=0.1, out=tmp_path / name)
        done = run("verify", name)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert f"soap.evaluation.verify_run(defence, data, '{name}')" in done.err
        assert soap.evaluation.verify_run(defence, data, name).holds
    assert "soap.evaluation.read_report('data', data)" in run("report", "data").err
    assert run("report", "purifier").code == 0


def test_moved_data_must_be_the_same(run, copied, archive):
    done = run("report", "run", "--data", archive)
    assert done.code == 2
    assert "cannot take 12" in done.err


def test_a_run_states_the_checksum_of_the_model_card(run, copied):
    weights = run("models", MODEL, "--json").json["weights_sha256"]
    assert run("report", "run").code == 0
    assert f"weights sha256 {weights}<" in (copied / "report.html").read_text()
    checks = json.loads((copied / "findings.json").read_text())["findings"]
    assert f"weights {weights[:12]}, data" in next(one["measured"] for one in checks if one["number"] == 19)


OWN = """
from dataclasses import dataclass
from soap.attacks import Attack

@dataclass(frozen=True, kw_only=True, repr=False)
class Invert(Attack):
    eps: float
    def perturb(self, model, x, y):
        return (x + self.eps * (0.5 - x).sign()).clamp(0, 1)

def mistaken(eps):
    return eps
"""


def test_an_own_attack_is_part_of_the_run_and_of_its_command(run, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    arguments = (*QUICK, "--suite", "extra", "--extra-attack", "mine:Invert", "--out", "own")
    shown = run(*arguments, "--json").json
    assert "extra" in [line["protocol"] for line in shown["protocols"]]
    assert json.loads((tmp_path / "own/run.json").read_text())["attempts"][0]["attack"]["name"] == "Invert"
    assert "--extra-attack mine:Invert" in json.loads((tmp_path / "own/facts/asked.json").read_text())["command"]
    for name in ("mine", "mine:Missing", "mine:mistaken", "mine:OWN"):
        refused = run(*QUICK, "--extra-attack", name, "--out", "refused")
        assert refused.code == 2
        assert name in refused.err
        assert not (tmp_path / "refused").exists()


def test_an_unknown_suite_names_the_suites(run):
    refused = run("evaluate", MODEL, "--suite", "fast")
    assert refused.code == 2
    assert "quick or full, or one protocol" in refused.err


def test_a_run_on_inverted_images_is_read_with_the_same_images(run, tmp_path):
    data = soap.data.load("mnist-mini").take(4)
    np.savez(tmp_path / "dark.npz", x=1 - data.x.numpy(), y=data.y.numpy())
    given = ("evaluate", MODEL, "--suite", "transfer", "--data", "dark.npz", "--invert", "--steps", "2", "--eps", "0.1")
    assert run(*given, "--limit", "4", "--out", "run").code == 0
    assert run("report", "run").code == 0
    assert "--invert" in json.loads((tmp_path / "run" / "facts" / "asked.json").read_text())["command"]
