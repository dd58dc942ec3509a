"""`soap evaluate --suite`, `soap report`, `soap verify` and `soap demo --adaptive`, end to end on a few digits."""

import json
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from soap import recipes
from soap._files import tensor_files
from soap.attacks import APGD
from soap.cli import demo, main
from soap.evaluation.verdict import NOTHING, TRUSTED, UPPER
from soap.results import from_json

MODEL = "mnist-fcn-dr"
QUICK = ("evaluate", MODEL, "--suite", "quick", "--data", "mnist-mini", "--limit", "12", "--steps", "2", "--eps", "0.1",
         "--batch", "8")  # fmt: skip


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

    evaluate = suite.evaluate_suite

    def judged(*arguments, **settings):
        report = evaluate(*arguments, **settings)
        return type(report)(**{**vars(report), "verdict": type(report.verdict)(name=verdict, reasons=())})

    monkeypatch.setattr(suite, "evaluate_suite", judged)


def test_headline_protocols_checks_and_skipped_protocols(run, copied, capsys):
    shown = run(*QUICK, "--out", "run")
    assert shown.code == 0
    lines = [line.strip() for line in shown.out.splitlines()]
    assert lines[0].startswith("worst ")
    assert f"of 12 images: {UPPER}" in lines[0]
    starts = [line.split()[0] for line in lines if line]
    for protocol in ("clean", "noise", "transfer", "bpda-trajectory", "worst"):
        assert protocol in starts
    assert sum(line.startswith(("PASS", "WARN", "FAIL", "NOT RUN")) and ". " in line for line in lines) == 19
    assert any(line.startswith("Skipped:") and "black-box (not in this suite)" in line for line in lines)
    assert "soap report run" in shown.err


def test_a_void_run_shows_no_worst_case(run, copied, monkeypatch):
    judge(monkeypatch, NOTHING)
    shown = run(*QUICK, "--out", "run")
    lines = [line.strip() for line in shown.out.splitlines()]
    assert lines[0].startswith("no accuracy of 12 images")
    starts = [line.split()[0] for line in lines if line]
    assert "bpda-trajectory" in starts
    assert "worst" not in starts
    assert run(*QUICK, "--out", "run", "--json").json["headline"] is None


def test_json_has_the_same_results(run, copied):
    answer = run(*QUICK, "--out", "run", "--json", "--quiet").json
    assert answer["schema"] == "soap/1"
    assert answer["finished"] is True
    assert answer["verdict"]["name"] == UPPER
    assert answer["verdict"]["reasons"]
    assert [one["number"] for one in answer["checks"]] == [*range(1, 20)]
    assert set(answer["left_out"]) == {"auxiliary-aware", "bpda", "bpda-start", "unrolled", "autoattack", "black-box"}
    rows = [from_json(row) for row in answer["rows"]]
    worst = next(row for row in rows if row.attack.name == "worst" and row.defence.purifies)
    assert answer["headline"]["correct"] == worst.correct
    assert answer["headline"]["interval"] == list(worst.interval)
    low, high = answer["headline"]["gain"][1:]
    assert low <= answer["headline"]["gain"][0] <= high


@pytest.mark.parametrize(("verdict", "code"), [(UPPER, 3), (TRUSTED, 0)])
def test_require_trusted(run, copied, monkeypatch, verdict, code):
    judge(monkeypatch, verdict)
    assert run(*QUICK, "--out", "run", "--require", "trusted").code == code
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
    assert "bpda-trajectory" not in stopped.out
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
    assert {row["defence"]["name"] for row in done.json["rows"]} == {"none"}
    assert done.json["threat"] == {"eps": 0.3, "norm": "linf"}  # the paper's
    assert done.json["left_out"]["bpda"] == "no purifier"
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
        (f"{EVALUATE} --require trusted", "--require needs --suite"),
        (f"{EVALUATE} --queries 5", "--queries needs --suite"),
        (f"{EVALUATE} --suite quick --require certain", "expected trusted"),
        (f"{EVALUATE} --suite quick --norm l2", "give --eps"),
        (f"{EVALUATE} --suite quick --norm l1 --eps 1", "norm is 'l1'"),
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
    assert done.json["verdict"] == UPPER
    assert UPPER in text
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
     ("robustbench", "report.robustbench.json", "{")],
)  # fmt: skip
def test_a_run_in_other_formats(run, copied, name, file, start):
    done = run("report", "run", "--format", name, "--json")
    assert done.json["file"] == str(copied / file)
    assert (copied / file).read_text().startswith(start)
    assert "did you mean" in run("report", "run", "--format", f"{name}x").err


def test_verify_reports_a_report_that_holds(run, copied):
    done = run("verify", "run", "--json")
    assert done.code == 0
    assert done.json["holds"] is True
    assert (done.json["changed"], done.json["problems"]) == (0, [])
    assert {one["protocol"] for one in done.json["rows"]} == {
        "clean", "noise", "transfer", "bpda-trajectory", "worst"
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


def test_moved_data_must_be_the_same(run, copied, archive):
    done = run("report", "run", "--data", archive)
    assert done.code == 2
    assert "cannot take 12" in done.err


def test_the_demo_shows_adaptive_and_transfer_results(run, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "evaluate_suite", partial(demo.evaluate_suite, steps=2))
    done = run("demo", "--adaptive", "--limit", "10", "--out", "page.html", "--json")
    assert done.code == 0
    found = done.json["adaptive"]
    assert found["model"] == "mnist-fcn-dr"
    assert found["headline"]["n"] == 10
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "An attacker who knows the purifier" in page
    assert found["verdict"]["name"] in page
    assert "--adaptive" in page
