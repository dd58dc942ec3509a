"""Models on the hub: real calls of huggingface_hub against a server on 127.0.0.1 that plays the hub's API."""

import gzip
import hashlib
import json
import pickle
import threading
from pathlib import Path

import pytest
import run_samples
import torch
import yaml
from command_line import run
from hub_server import REPO, FakeHub
from huggingface_hub import constants, eval_result_entries_to_yaml, parse_eval_result_entries

import soap
from soap import hub, zoo
from soap._files import checksums, tensor_files
from soap.errors import FileError, InputError
from soap.report import hub_folder
from soap.report.hub_folder import push_model, write_hub_folder

__all__ = ["run"]
MODEL = "mnist-fcn-no-def"


@pytest.fixture
def server(monkeypatch, tmp_path):
    """An empty hub; HF_ENDPOINT and the data folder are those of this test."""
    with FakeHub() as served:
        threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setenv("SOAP_DATA", str(tmp_path / "data"))
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the server plays the LFS protocol
        yield served
        served.shutdown()


@pytest.fixture
def uploaded(server, tmp_path):
    """A hub with the model."""
    files = write_hub_folder(MODEL, tmp_path / "files", REPO)
    server.commit({name: path.read_bytes() for name, path in files.items()})
    return server


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    both = one.state_dict(), other.state_dict()
    return both[0].keys() == both[1].keys() and all(torch.equal(both[0][name], both[1][name]) for name in both[0])


@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # of huggingface_hub's own upload
def test_a_pushed_model_is_loaded_again_with_its_commit(server, run, monkeypatch):
    pushed = run("push", MODEL, REPO, "--json")
    assert pushed.code == 0, pushed.err
    reference = pushed.json["model"]
    assert reference == f"hf://{REPO}@{server.commits[REPO][-1][0]}"
    monkeypatch.setenv("SOAP_DATA", "loaded")
    model = soap.load(f"hf://{REPO}")
    assert same_weights(model, soap.load(MODEL))
    assert model.source == reference
    assert not model.training
    assert set(server.commits[REPO][-1][1]) == {"model.safetensors", "config.json", "README.md", hub_folder.RESULTS}


def test_a_commit_that_is_here_needs_no_request(uploaded, caplog):
    first = soap.load(f"hf://{REPO}")
    assert first.source in caplog.text  # the commit is reported
    uploaded.requests.clear()
    caplog.clear()
    assert same_weights(soap.load(first.source), first)
    assert uploaded.requests == []
    assert caplog.text == ""


def test_a_branch_follows_the_hub_and_a_commit_does_not(uploaded, tmp_path):
    old = soap.load(f"hf://{REPO}@main")
    files = write_hub_folder("mnist-fcn-fgsm-at", tmp_path / "other", REPO)
    uploaded.commit({name: path.read_bytes() for name, path in files.items()})
    new = soap.load(f"hf://{REPO}@main")
    assert same_weights(new, soap.load("mnist-fcn-fgsm-at"))
    assert same_weights(soap.load(old.source), old)
    assert not same_weights(old, new)


def test_commands_take_a_model_of_the_hub_and_a_run_keeps_its_commit(uploaded, run):
    shown = run("models", f"hf://{REPO}")
    assert shown.code == 0, shown.err
    assert MODEL in shown.out
    commit = uploaded.commits[REPO][0][0]
    assert commit in shown.out  # in the path of the file
    done = run("evaluate", f"hf://{REPO}", "--suite", "transfer", "--data", "mnist-mini", "--limit", "4",
               "--steps", "1", "--out", "kept", "--quiet")  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads(Path("kept/facts/asked.json").read_text())["model"] == f"hf://{REPO}@{commit}"
    uploaded.commits[REPO].clear()
    assert run("verify", "kept").code == 0


@pytest.mark.parametrize(
    "name",
    ["hf://model", "hf://../model", "hf://me/..", "hf://me/a..b", "hf://me/model@../../x", "hf://me/model@a/../b",
     "hf://me/model/more", "hf://me/model@", "hf:///etc/passwd", "hf://me/mo del", "hf://me\\x/model"],
)  # fmt: skip
def test_a_name_that_is_no_repository_is_refused_before_any_request(server, name):
    with pytest.raises(InputError, match="expected hf://owner/name"):
        soap.load(name)
    assert server.requests == []


def swap(server: FakeHub, **files: bytes) -> None:
    """Replace files of the newest commit; keywords have _ for a dot."""
    number, content = server.commits[REPO][-1]
    server.commits[REPO][-1] = number, {**content, **{name.replace("_", "."): made for name, made in files.items()}}


def without(server: FakeHub, name: str) -> None:
    server.commits[REPO][-1][1].pop(name)


def config_for(server: FakeHub, weights: bytes, **changed: object) -> bytes:
    """Return a config.json for these weights, with a valid checksum, as anyone can write one."""
    old = checksums.loads(server.commits[REPO][-1][1]["config.json"])
    return checksums.dumps({**old, "sha256": hashlib.sha256(weights).hexdigest(), **changed}).encode()


def pickled(server):
    made = pickle.dumps({"weights": [1.0]})
    swap(server, model_safetensors=made, config_json=config_for(server, made))


def zipped(server):
    made = b"PK\x03\x04 archive of torch.save"
    swap(server, model_safetensors=made, config_json=config_for(server, made))


def only_pickles(server):
    without(server, "model.safetensors")
    swap(server, pytorch_model_bin=pickle.dumps({}))


def other_weights(server):
    swap(server, model_safetensors=zoo.weights_path("mnist-fcn-fgsm-at").read_bytes())


def other_recipe(server):
    made = zoo.weights_path("mnist-fcn-fgsm-at").read_bytes()
    swap(server, model_safetensors=made, config_json=config_for(server, made))


def oversized(server):
    server.sizes["model.safetensors"] = 2**40


def oversized_config(server):
    server.sizes["config.json"] = 2**21


def size_unknown(server):
    server.sizes["model.safetensors"] = None


def compressed(server):
    """More bytes than listed would come out of a decompressed response."""
    made = gzip.compress(bytes(10_000_000))
    server.sizes["model.safetensors"] = len(made)
    swap(server, model_safetensors=made)


def endless(server):
    server.sizes["model.safetensors"] = 1000  # the server sends more than it lists


def cut(server):
    server.sizes["model.safetensors"] = 10**9


def bad_config(server):
    swap(server, config_json=b"[" * 100_000)


def other_format(server):
    weights = server.commits[REPO][-1][1]["model.safetensors"]
    swap(server, config_json=config_for(server, weights, format="transformers"))


def outside(server):
    server.commits[REPO][-1][1]["../../.ssh/authorized_keys"] = b"key"


def bad_commit(server):
    server.resolves_to = "../../../elsewhere"


def other_commit(server):
    server.resolves_to = "f" * 40


def elsewhere(server):
    server.redirects["model.safetensors"] = f"http://localhost:{server.server_port}/moved/model.safetensors"


def to_a_file(server):
    server.redirects["model.safetensors"] = "file:///etc/passwd"


def to_another_port(server):
    server.redirects["config.json"] = "http://127.0.0.1:9/config.json"


def forever(server):
    server.redirects["model.safetensors"] = f"/{REPO}/resolve/main/model.safetensors"


REFUSED = {
    pickled: "is a pickle, which is never loaded", zipped: "is a pickle", only_pickles: "holds pickles",
    other_weights: "swapped or damaged: sha256", other_recipe: "different recipes", oversized: "expected at most",
    endless: "more than its 1,000 bytes", cut: "ended after", bad_config: "config.json is not that of a soap model",
    other_format: "format is 'transformers'", outside: "a path outside of the repository",
    bad_commit: "expected a commit of 40 digits", elsewhere: "redirects to http://localhost:.* refused",
    other_commit: "no such branch, tag or commit", forever: "redirects more than 5 times",
    oversized_config: "config.json has 2,097,152 bytes, expected at most", size_unknown: "it has no model.safetensors",
    compressed: "swapped or damaged: sha256", to_a_file: "redirects to file:// *, not a host of the hub; refused",
    to_another_port: "redirects to http://127.0.0.1:9, not a host of the hub; refused",
}  # fmt: skip


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_hostile_repositories_are_refused_and_nothing_is_kept(uploaded, tmp_path, change):
    change(uploaded)
    with pytest.raises(FileError, match=REFUSED[change]):
        soap.load(f"hf://{REPO}")
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []


def test_a_redirect_on_the_same_host_is_followed(uploaded):
    uploaded.redirects["model.safetensors"] = "/moved/model.safetensors"
    assert same_weights(soap.load(f"hf://{REPO}"), soap.load(MODEL))


def test_the_token_is_not_sent_to_another_host(uploaded, monkeypatch):
    """Even to a trusted one: the public hub redirects to hosts that need no token."""
    moved = f"localhost:{uploaded.server_port}/moved/model.safetensors"
    uploaded.redirects["model.safetensors"] = f"http://{moved}"
    monkeypatch.setattr(hub, "_is_trusted", lambda url: True)
    soap.load(f"hf://{REPO}")
    sent = {place: token for place, token in uploaded.tokens.items() if place.endswith("model.safetensors")}
    assert sent.pop(moved) is None
    assert [*sent.values()] == ["Bearer hf_test"]


def test_nothing_of_a_repository_but_the_two_files_is_requested(uploaded):
    uploaded.commit({"evil.py": b"raise SystemExit", "model.pkl": pickle.dumps({}), "sub/config.json": b"{}"})
    soap.load(f"hf://{REPO}")
    files = [one.rpartition("/")[2] for one in uploaded.requests if "/resolve/" in one]
    assert sorted(files) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("endpoint", "url", "trusted"),
    [
        ("https://huggingface.co", "https://us.aws.cdn.hf.co/weights", True),
        ("https://huggingface.co", "https://huggingface.co/me/model", True),
        ("https://huggingface.co", "http://us.aws.cdn.hf.co/weights", False),
        ("https://huggingface.co", "https://hf.co.attacker.net/weights", False),
        ("https://huggingface.co", "https://nothf.co/weights", False),
        ("https://huggingface.co", "https://169.254.169.254/latest", False),
        ("https://hub.company", "https://us.aws.cdn.hf.co/weights", False),
        ("https://hub.company", "https://hub.company:8443/weights", False),
        ("https://hub.company", "https://hub.company/weights", True),
        ("https://hub.company", "http://hub.company/weights", False),
        ("https://huggingface.co", "https://huggingface.co@attacker.net/weights", False),
        ("https://huggingface.co", "https://attacker.net/huggingface.co", False),
        ("https://huggingface.co", "https://attacker.net?.hf.co", False),
        ("https://huggingface.co", "https://attacker.net#.hf.co", False),
        ("https://huggingface.co", "https:huggingface.co", False),
        ("https://huggingface.co", "file:///etc/passwd", False),
        ("https://huggingface.co", "ftp://huggingface.co/weights", False),
    ],
)
def test_hosts_that_a_download_may_come_from(monkeypatch, endpoint, url, trusted):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert hub._is_trusted(url) is trusted


def test_files_changed_after_the_download_are_refused(uploaded):
    path = zoo.weights_path(f"hf://{REPO}")
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(FileError, match="swapped or damaged"):
        soap.load(f"hf://{REPO}")


def test_errors_of_the_hub_are_one_line(server, monkeypatch):
    with pytest.raises(FileError, match="no such model, or you have no access"):
        soap.load("hf://you/missing")
    server.commit({"README.md": b""})
    with pytest.raises(FileError, match="no such branch"):
        soap.load(f"hf://{REPO}@v9")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FileError, match=r"http://127\.0\.0\.1:9 failed: ConnectError") as caught:
        push_model(MODEL, REPO)
    assert "\n" not in str(caught.value)


def test_the_files_of_a_model_state_its_recipe_hash_and_results(tmp_path):
    files = write_hub_folder("mnist-cnn-dr", tmp_path, REPO)
    config = json.loads(files["config.json"].read_text())
    assert config["recipe"] == zoo.recipe("mnist-cnn-dr").text
    assert config["sha256"] == hashlib.sha256(files["model.safetensors"].read_bytes()).hexdigest()
    assert tensor_files.load_tensors(files["model.safetensors"])[1]["recipe"] == config["recipe"]
    front, text = files["README.md"].read_text().split("---\n", 2)[1:]
    assert yaml.safe_load(front)["datasets"] == ["ylecun/mnist"]
    assert "99.0 [98.7, 99.1] | 87.2" in text  # the bundled rows, clean and FGSM
    assert "Not measured: `soap evaluate hf://me/model" in text
    entries = yaml.safe_load(files[hub_folder.RESULTS].read_text())
    assert [(one["dataset"]["id"], one["dataset"]["task_id"], one["value"]) for one in entries] == [
        ("ylecun/mnist", "none-transfer", 98.96),
        ("ylecun/mnist", "fgsm-transfer", 87.17),
        ("ylecun/mnist", "pgd-transfer", 84.87),
    ]
    assert entries[2]["notes"].startswith("95 % interval [84.15, 85.56], n = 10000; transfer protocol; PGD(eps=0.3, ")
    parsed = parse_eval_result_entries(entries)
    assert eval_result_entries_to_yaml(parsed) == entries


def test_a_run_of_other_weights_is_refused_and_one_of_the_model_gives_its_verdict(tmp_path):
    report = run_samples.sample_run(tmp_path / "run", run_samples.sample_images())
    with pytest.raises(InputError, match="measured other weights"):
        write_hub_folder(MODEL, tmp_path / "files", REPO, report)
    weights = hub_folder.read_model_card(MODEL).weights_sha256
    made = report.worst_row.provenance
    object.__setattr__(made, "weights_sha256", weights)
    text = write_hub_folder(MODEL, tmp_path / "files", REPO, report)["README.md"].read_text()
    assert f"of 20 images: {report.verdict}" in text
