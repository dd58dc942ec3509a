"""Models on the hub: real calls of huggingface_hub against a server on 127.0.0.1 that plays the hub's API."""

import base64
import hashlib
import json
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import run_samples
import torch
import yaml
from command_line import run
from huggingface_hub import constants, eval_result_entries_to_yaml, parse_eval_result_entries

import soap
from soap import zoo
from soap._files import tensor_files
from soap.errors import FileError, InputError
from soap.report import hub_folder
from soap.report.hub_folder import push_model, write_hub_folder

__all__ = ["run"]
MODEL, REPO = "mnist-fcn-no-def", "me/model"


class FakeHub(ThreadingHTTPServer):
    """Repositories by name: each a list of (commit, files), the last one is main."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {REPO: []}
        self.stored: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.sizes: dict[str, int] = {}
        self.resolves_to: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, files: dict[str, bytes]) -> str:
        history = self.commits[REPO]
        number = hashlib.sha1(repr((len(history), sorted(files))).encode()).hexdigest()
        history.append((number, {**(history[-1][1] if history else {}), **files}))
        return number

    def at(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        history = self.commits.get(repo, [])
        if revision == "main":
            return history[-1] if history else None
        return next((one for one in history if one[0] == revision), None)


class Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        self.server.requests.append(f"{self.command} {urlsplit(self.path).path}")

    def answer(self, content: object, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            repo, revision = "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main"
            if repo not in self.server.commits:
                return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            found = self.server.at(repo, revision)
            if found is None:
                return self.answer({"error": "no revision"}, 404, X_Error_Code="RevisionNotFound")
            sizes = {name: self.server.sizes.get(name, len(content)) for name, content in found[1].items()}
            siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            return self.answer({"id": repo, "sha": self.server.resolves_to or found[0], "siblings": siblings})
        name = "/".join(parts[4:])
        found = self.server.at("/".join(parts[:2]), parts[3])
        if found is None:
            return self.answer(b"", 404)
        tag = hashlib.sha256(found[1][name]).hexdigest()
        return self.answer(found[1][name], ETag=f'"{tag}"', X_Repo_Commit=found[0])

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            return self.answer({"url": f"{self.server.url}/{REPO}"})
        if path == "/api/validate-yaml":
            return self.answer({"warnings": [], "errors": []})
        if path == f"/api/models/{REPO}/preupload/main":
            modes = {True: "lfs", False: "regular"}
            files = [
                {"path": one["path"], "uploadMode": modes[one["path"].endswith(".safetensors")], "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if path == f"/{REPO}.git/info/lfs/objects/batch":
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.server.url}/upload/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": objects})
        assert path == f"/api/models/{REPO}/commit/main", path
        files = {}
        for line in body.splitlines():
            match json.loads(line):
                case {"key": "file", "value": {"path": name, "content": content}}:
                    files[name] = base64.b64decode(content)
                case {"key": "lfsFile", "value": {"path": name, "oid": oid}}:
                    files[name] = self.server.stored[oid]
        number = self.server.commit(files)
        return self.answer({"commitUrl": f"{self.server.url}/{REPO}/commit/{number}", "commitOid": number})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.stored[self.path.rsplit("/", 1)[1]] = content
        self.answer(b"")


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
    old = json.loads(server.commits[REPO][-1][1]["config.json"])
    return json.dumps({**old, "sha256": hashlib.sha256(weights).hexdigest(), **changed}).encode()


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


REFUSED = {
    pickled: "is a pickle, which is never loaded", zipped: "is a pickle", only_pickles: "holds pickles",
    other_weights: "swapped or damaged: sha256", other_recipe: "different recipes", oversized: "expected at most",
    endless: "but the hub lists 1,000", cut: "but the hub lists 1,000,000,000",
    bad_config: "config.json is not that of a soap model",
    other_format: "format is 'transformers'", outside: "a path outside of the repository",
    bad_commit: "expected a commit of 40 digits", other_commit: "no such branch, tag or commit",
}  # fmt: skip


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_hostile_repositories_are_refused_and_nothing_is_kept(uploaded, tmp_path, change):
    change(uploaded)
    with pytest.raises(FileError, match=REFUSED[change]):
        soap.load(f"hf://{REPO}")
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []


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
