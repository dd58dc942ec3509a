"""A suite run: its files, resumption with the same bits, and errors for damaged folders."""

import importlib.util
import json
import shutil

import numpy as np
import pytest
import small_runs
import torch
from small_runs import EFFORT, THREAT, change_batch, change_json, content, defence, images, run
from tiny import noise_images, tiny_model
from torch import nn

import soap
from soap.attacks import APGD
from soap.data.dataset import make_dataset
from soap.defence import Defence
from soap.errors import FileError, InputError
from soap.evaluation import Clean, evaluate_transfer, headline, provenance, read_report
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.suite_rows import result_rows
from soap.evaluation.verdict import INVALID, WARNED
from soap.report.run_text import run_notes
from soap.results import Store
from soap.specs import defence_spec


@pytest.fixture(scope="module", autouse=True)
def no_git():
    """Avoid a call of git for every plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOAP_COMMIT", "test")
        yield


@pytest.fixture(scope="module", autouse=True)
def short_square():
    """Fifty queries of AutoAttack's Square instead of 5,000, which take 10 s where an image survives."""
    if importlib.util.find_spec("pyautoattack") is None:
        yield
        return
    package = importlib.import_module("pyautoattack")
    make = package.AutoAttack.__init__

    def make_short(self, *arguments, **settings):
        make(self, *arguments, **settings)
        self.square.n_queries = 50

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package.AutoAttack, "__init__", make_short)
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run; tests copy it before they change it."""
    out = tmp_path_factory.mktemp("run") / "quick"
    return run(out)


@pytest.fixture
def copied(done, tmp_path):
    return shutil.copytree(done.folder.path, tmp_path / "copy")


def stopping(after):
    """A `stop` that returns True from call number `after` on."""
    questions = iter(range(10**6))
    return lambda: next(questions) >= after


def test_results_are_counts_over_the_stored_images(done):
    model, data = defence(), images()
    survived = model.labels(data.x) == data.y
    assert done.summary.clean.correct == int(survived.sum())
    for index in range(len(done.summary.plan["attempts"])):
        for number in range(2):
            batch = done.folder.read_batch(index, number)
            if len(batch.rows):
                labels = model.labels(torch.from_numpy(batch.x))
                survived[batch.rows] &= labels == data.y[batch.rows]
    assert done.summary.worst.correct == int(survived.sum())
    assert 0 < done.summary.worst.correct < done.summary.clean.correct


def test_a_run_keeps_plan_batches_facts_and_findings(done):
    out = done.folder.path
    assert {path.name for path in out.iterdir()} == {
        "run.json", "clean", "attempts", "facts", "rows.jsonl", "seal.json", "findings.json"
    }  # fmt: skip
    kept = json.loads((out / "findings.json").read_text())
    assert kept["verdict"] == {"name": WARNED, "reasons": list(done.verdict.reasons)}
    assert [one["number"] for one in kept["findings"]] == [one.number for one in done.findings] == [*range(1, 23)]
    assert Store(done.folder.rows).read() == result_rows(done.summary)
    assert WARNED in headline(done.summary, done.verdict)


def test_a_run_that_is_stopped_repeatedly_ends_with_the_same_bits(done, tmp_path):
    stops = 0
    while run(tmp_path / "again", stop=stopping(1 + 2 * stops)) is None:
        stops += 1
        assert stops < 100
    assert stops > 0
    assert content(tmp_path / "again") == content(done.folder.path)


def test_versions_that_resume_a_run_are_stored(done, copied, monkeypatch, tmp_path):
    out = tmp_path / "again"
    assert run(out, stop=stopping(3)) is None
    for commit, after in (("later", 6), ("later", 9), ("latest", 10**6)):
        monkeypatch.setenv("SOAP_COMMIT", commit)
        report = run(out, stop=stopping(after))
    measured = next(one.measured for one in report.findings if one.number == 19)
    assert "commit test; resumed at later, torch " in measured
    assert "; resumed at latest, torch " in measured
    assert measured.count("resumed") == 2
    run(copied)  # finished at one commit: to look at it is not to go on
    assert content(copied) == content(done.folder.path)


def test_unfinished_files_of_a_killed_run_are_removed(copied):
    left = [copied / place / ".0000.npz.x.unfinished" for place in ("", "clean", "attempts/01", "facts")]
    for path in left:
        path.write_bytes(b"half")
    run(copied)
    assert not [path for path in left if path.exists()]


def test_a_finished_run_is_not_run_again(copied, monkeypatch):
    before = content(copied)
    stamps = {path: path.stat().st_mtime_ns for path in copied.rglob("*.npz")}

    def forbidden(*_):
        raise AssertionError("the attack ran again")

    monkeypatch.setattr(APGD, "perturb", forbidden)
    assert run(copied).verdict.name == WARNED
    assert content(copied) == before
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*.npz")} == stamps


def test_the_report_is_read_from_the_folder(done):
    again = read_report(done.folder.path, images())
    assert (again.verdict, again.findings) == (done.verdict, done.findings)
    for one, other in zip(again.summary.protocols, done.summary.protocols, strict=True):
        assert np.array_equal(one.defended, other.defended)
        assert np.array_equal(one.bare, other.bare)


def test_an_edited_verdict_does_not_change_the_report(copied):
    change_json(copied / "findings.json", lambda kept: kept["verdict"].update(name="CHECKS PASSED", reasons=[]))
    assert read_report(copied, images()).verdict.name == WARNED


def test_another_plan_needs_another_folder(copied):
    with pytest.raises(InputError, match="holds another run"):
        run(copied, seed=1)
    with pytest.raises(InputError, match="did you mean quick"):
        run(copied, suite="quik")


def test_the_note_of_the_caller_is_kept(tmp_path):
    report = run(tmp_path / "run", suite="noise", note={"command": "this one"})
    assert report.folder.read_fact("asked") == {"command": "this one"}
    assert [line.protocol for line in report.summary.protocols] == ["noise"]


def test_probabilities_give_the_verdict_not_a_robustness_number(tmp_path):
    data = images()
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Softmax(1))
    with torch.no_grad():
        data.y.copy_(network(data.x).argmax(1))
    softmax = Defence.of_module(network, name="softmax")
    report = soap.evaluate(softmax, data, eps=THREAT.eps, suite="transfer", out=tmp_path, **EFFORT)
    assert report.verdict.name == INVALID
    assert "no accuracy" in headline(report.summary, report.verdict)


def test_a_model_without_a_purifier(tmp_path):
    model = small_runs.tiny_model()
    report = soap.evaluate(Defence(model), images(), eps=THREAT.eps, suite="transfer", out=tmp_path, **EFFORT)
    assert {row.defence.purifies for row in report.rows} == {False}
    assert len(report.rows) == 3


def truncate(out):
    path = out / "attempts" / "01" / "0000.npz"
    path.write_bytes(path.read_bytes()[:100])


def words_for_answers(out):
    path = out / "attempts" / "00" / "0000.npz"
    with np.load(path) as arrays:
        changed = {**arrays, "bare": arrays["bare"].astype(str)}
    np.savez(path, **changed)


HOSTILE = {
    "a cut batch": (truncate, "0000.npz: cannot be read"),
    "no plan": (lambda out: (out / "run.json").unlink(), "no such file"),
    "a plan that is no JSON": (lambda out: (out / "run.json").write_text("{"), "give the folder of a run"),
    "a list for a plan": (lambda out: (out / "run.json").write_text("[]"), "it is not a JSON object"),
    "another schema": (lambda out: change_json(out / "run.json", lambda p: p.update(schema="x")), "schema is 'x'"),
    "no threat": (lambda out: change_json(out / "run.json", lambda p: p.pop("threat")), "its threat"),
    "words for a radius": (
        lambda out: change_json(out / "run.json", lambda p: p["threat"].update(eps="x")), "its threat.eps"
    ),
    "no batch size": (lambda out: change_json(out / "run.json", lambda p: p.update(batch_size=0)), "its batch_size"),
    "a true batch size": (lambda out: change_json(out / "run.json", lambda p: p.update(batch_size=True)), "batch_size"),
    "words for attempts": (lambda out: change_json(out / "run.json", lambda p: p.update(attempts="x")), "attempts"),
    "half an attempt": (
        lambda out: change_json(out / "run.json", lambda p: p["attempts"][1].pop("protocol")), "attempts.1.protocol"
    ),
    "half a provenance": (
        lambda out: change_json(out / "run.json", lambda p: p["provenance"].pop("seed")), "seed"
    ),
    "too much provenance": (
        lambda out: change_json(out / "run.json", lambda p: p["provenance"].update(more=1)), "more"
    ),
    "no clean batch": (lambda out: (out / "clean" / "0001.npz").unlink(), "clean/0001 is missing"),
    "rows beyond the data": (
        lambda out: change_batch(out, 0, 0, lambda b: {"rows": b.rows + 100}), "attempts/00/0000 do not fit"
    ),
    "rows that are twice there": (
        lambda out: change_batch(out, 0, 0, lambda b: {"rows": np.zeros_like(b.rows)}), "do not fit"
    ),
    "images of another shape": (lambda out: change_batch(out, 0, 0, lambda b: {"x": b.x[:, :, 1:]}), "do not fit"),
    "too few answers": (lambda out: change_batch(out, 0, 0, lambda b: {"defended": b.defended[1:]}), "do not fit"),
    "answers in words": (words_for_answers, "do not fit"),
    "a fact that is none": (lambda out: (out / "facts" / "gradient.json").write_text("{}"), "facts"),
    "a fact that is no JSON": (lambda out: (out / "facts" / "gradient.json").write_text("{"), "gradient.json"),
}  # fmt: skip


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_folder_raises_a_file_error(copied, case):
    tamper, said = HOSTILE[case]
    tamper(copied)
    with pytest.raises(FileError) as error:
        read_report(copied, images())
    assert said in str(error.value)


def test_a_batch_of_another_run_is_named_when_the_run_resumes(copied):
    """A stopped run once wrote its last batch into the folder of the next run, which ended with an IndexError."""
    change_batch(copied, 0, 0, lambda batch: {"rows": batch.rows + 100})
    with pytest.raises(FileError, match="attempts/00/0000 do not fit the data; remove it"):
        run(copied)


def test_other_data_than_the_runs_are_rejected(done):
    with pytest.raises(InputError, match="give the data of the run"):
        read_report(done.folder.path, images(10))
    with pytest.raises(InputError, match="give the data of the run"):
        read_report(done.folder.path, soap.data.load("mnist-mini").take(11))


class Brightest(nn.Module):
    """Answers without a weight: the brightest of the first pixels."""

    def forward(self, x):
        return x.flatten(1)[:, :4] * 5


def test_a_network_without_weights_is_evaluated(tmp_path):
    brightest = Defence.of_module(Brightest(), name="brightest")
    report = soap.evaluate(brightest, images(), eps=THREAT.eps, suite="transfer", out=tmp_path / "run", **EFFORT)
    assert report is not None
    assert report.summary.plan["provenance"]["device"].startswith("cpu")


@pytest.mark.parametrize("classes", [2, 3, 4, 6])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_full_suite_runs_with_few_classes(classes, norm, tmp_path):
    """Losses and AutoAttack's targets took ten; a run ended in the middle."""
    pytest.importorskip("pyautoattack")
    torch.manual_seed(classes)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, classes))
    x = noise_images(8, seed=1)
    few = make_dataset("few", "test", x.numpy(), network(x).argmax(1).numpy(), tuple("abcdef"[:classes]))
    whole = Defence(network, lambda x: x.round(decimals=1), name="few")
    sizes = {"eps": 0.1 if norm == "linf" else 1.0, "steps": 2, "queries": 4, "batch_size": 8}
    report = soap.evaluate(whole, few, norm=norm, suite="full", out=tmp_path / "run", **sizes)
    assert report is not None
    assert {"transfer", "autoattack", "substitute", "square", "decision"} <= {
        line.protocol for line in report.summary.protocols
    }


def test_a_joint_model_with_probabilities_is_evaluated(tmp_path):
    """The attack that knows the auxiliary task did not see it behind the wrapper that makes such a model attackable."""
    model = tiny_model()
    model.classifier = nn.Sequential(model.classifier, nn.Softmax(1))
    data = images()
    own = Defence(model)
    report = soap.evaluate(own, data, eps=THREAT.eps, suite="auxiliary-aware", out=tmp_path / "run", **EFFORT)
    assert report.verdict.name == INVALID


def test_rows_of_other_threats_have_other_keys(tmp_path):
    """Two worst cases at different radii were the same figure by their key, and bare rows by any defence's points."""
    made = [
        soap.evaluate(defence(), images(4), suite="classifier", eps=eps, out=tmp_path / str(eps), **EFFORT)
        for eps in (0.02, 0.05)
    ]
    one, other = ({row.key for row in report.rows if row.attack.name != "clean"} for report in made)
    assert not one & other
    bare = [row for row in made[0].rows if not row.defence.purifies]
    assert all(row.attack.against == defence_spec(defence().purifier) for row in bare[:-1])
    assert (bare[-1].attack.name, bare[-1].attack.against) == ("worst", None)  # the classifier's own worst case


def test_black_box_attacks_are_not_judged_by_gradient_steps(tmp_path):
    """A stolen copy was taken for an attack by gradient steps, and the run was void for its single step."""
    report = run(tmp_path / "run", suite="substitute")
    assert {one.state for one in report.findings if one.number in (8, 9, 10, 11, 12)} == {"NOT RUN"}


def test_a_run_reads_each_stored_batch_once_and_hashes_the_weights_once(copied, monkeypatch):
    reads, hashes = [], []
    read_batch, fingerprint = RunFolder.read_batch, provenance.fingerprint
    monkeypatch.setattr(RunFolder, "read_batch", lambda self, *place: reads.append(place) or read_batch(self, *place))
    monkeypatch.setattr(provenance, "fingerprint", lambda model: hashes.append(model) or fingerprint(model))
    assert run(copied) is not None
    assert len(reads) == len(set(reads)) == len([*RunFolder(copied).batch_names()])
    assert len(hashes) == 1
    reads.clear()
    read_report(copied, images())
    assert len(reads) == len(set(reads))


def test_evaluate_returns_the_worst_case_with_its_interval_and_verdict(done, copied):
    report = soap.evaluate(defence(), images(), suite="quick", eps=THREAT.eps, out=copied, **EFFORT)
    assert report.worst == done.summary.worst.accuracy
    assert report.interval == done.summary.worst.interval
    assert (report.n, report.verdict) == (11, done.verdict)
    assert report.rows == Store(copied / "rows.jsonl").read()


def test_evaluate_with_attacks_is_the_transfer_protocol(tmp_path):
    attacks = {"none": Clean(), "fgsm": soap.attacks.FGSM(eps=0.1)}
    own, data = defence(), images()
    report = soap.evaluate(own, data, attacks=attacks, out=tmp_path / "rows.jsonl")
    rows = evaluate_transfer(own.classifier, data, attacks, [own.purifier])
    assert [(row.key, row.correct) for row in report.rows] == [(row.key, row.correct) for row in rows]
    assert Store(tmp_path / "rows.jsonl").read() == report.rows
    assert report.worst == min(row.accuracy for row in rows if row.defence.purifies)
    assert report.verdict.name == WARNED
    assert soap.evaluate(own, data, attacks=attacks, stop=lambda: True) is None


def test_evaluate_accepts_any_classifier_and_function(tmp_path):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    report = soap.evaluate(Defence(network, torch.round), images(), attacks={"fgsm": soap.attacks.FGSM(eps=0.1)})
    assert [row.defence.name for row in report.rows] == ["none", "round"]
    assert report.rows[1].measures == {}


@pytest.mark.parametrize(("given", "missing"), [({"out": "x"}, "needs eps"), ({"eps": 0.1}, "needs out")])
def test_a_suite_needs_a_radius_and_a_folder(given, missing):
    with pytest.raises(InputError, match=missing):
        soap.evaluate(defence(), images(), suite="quick", **given)


def test_classifier_that_no_attempt_attacked_has_no_worst_case(done, tmp_path):
    """A run of Square alone once reported a classifier that nothing had attacked as robust."""
    alone = run(tmp_path / "square", suite="square")
    assert done.summary.classifier_worst is not None
    assert alone.summary.classifier_worst is None
    assert "classifier alone" not in " ".join(run_notes(alone))
    assert {row.defence.name for row in result_rows(alone.summary) if row.attack.against is None} == {"SOAP"}
