"""`soap data`: list, download, import and export data sets."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import soap


def test_list_shows_present_data_sets_and_folders(run, tmp_path):
    sets = {one["name"]: one for one in run("data", "list", "--json").json["sets"]}
    assert set(sets) == {"mnist-mini", "mnist", "cifar10", "cifar100"}
    assert sets["mnist-mini"]["present"]
    assert sets["mnist"]["folder"] == str(tmp_path / "data" / "mnist")  # $SOAP_DATA
    assert not sets["mnist"]["present"]
    assert "train-images-idx3-ubyte" in sets["mnist"]["missing"]
    shown = run("data", "list", "--data-root", tmp_path / "elsewhere")
    assert str(tmp_path / "elsewhere" / "mnist") in shown.out
    assert "soap data download mnist" in shown.err


@pytest.mark.parametrize("verb", ["download", "import"])
def test_names_are_checked(run, verb):
    folder = () if verb == "download" else (".",)
    near = run("data", verb, "cifar-10", *folder)
    assert near.code == 2
    assert "did you mean cifar10" in near.err
    bundled = run("data", verb, "mnist-mini", *folder)
    assert bundled.code == 2
    assert "bundled" in bundled.err


def test_import_copies_what_passes_the_checks(run, tmp_path, monkeypatch):
    called = {}

    def imported(name, folder, *, root):
        called.update(name=name, folder=folder, root=root)
        return tmp_path / "there"

    monkeypatch.setattr(soap.data, "import_files", imported)
    done = run("data", "import", "mnist", "files", "--data-root", "root", "--json")
    assert done.json["folder"] == str(tmp_path / "there")
    assert {key: str(value) for key, value in called.items()} == {"name": "mnist", "folder": "files", "root": "root"}


def test_an_empty_folder_is_not_a_data_set(run, tmp_path):
    (tmp_path / "empty").mkdir()
    done = run("data", "import", "mnist", "empty")
    assert done.code == 1
    assert "does not contain mnist" in done.err
    assert not (tmp_path / "data").exists()


def test_a_mirror_without_the_file_is_an_error(run, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")

    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        done = run("data", "download", "mnist", "--mirror", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert done.code == 1
    assert "404" in done.err
    assert "soap data import mnist DIR" in done.err
    assert done.err.count("\n") == 1


def test_ctrl_c_during_a_download_says_how_to_resume(run, monkeypatch):
    def cut(name, *, root, mirror, progress):
        progress("part.gz", 5, 10)
        raise KeyboardInterrupt

    monkeypatch.setattr(soap.data, "download", cut)
    done = run("data", "download", "mnist")
    assert done.code == 130
    assert "run the same command again to resume" in done.err


def test_exported_images_are_input_of_other_commands(run, tmp_path):
    done = run("data", "export", "mnist-mini", "--out", "digits", "--limit", "10")
    assert done.code == 0
    assert len([*(tmp_path / "digits").rglob("*.png")]) == 10
    shown = run("predict", "mnist-fcn-dr", "digits", "--no-purify", "--json").json["images"]
    assert sum(Path(one["file"]).parent.name == one["name"] for one in shown) >= 9
    assert run("data", "export", "mnist-mini", "--out", "digits").code == 2
