"""What the page needs to run a network by itself: fetched whole, checked, and put there in one go, or not at all."""

import base64
import hashlib
import io
import json
import re
import sys
import tarfile
from pathlib import Path

import pytest
import vendor_onnxruntime as tool

from soap.errors import FileError, InputError

CONTENTS = {name: f"contents of {name}".encode() for name in tool.WANTED}


def archive(path, contents, links=()):
    """A package like npm's: `contents` by name, and `links` (name, target)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, body in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        for name, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return path


def integrity(path):
    return f"sha512-{base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()}"


@pytest.fixture
def package(tmp_path):
    """A package as it should be, with more in it than is wanted."""
    more = {"package/README.md": b"read me", "package/dist/ort.js": b"ort"}
    return archive(tmp_path / "package.tgz", {**more, **CONTENTS})


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Put an `npm` that does `work` alone on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(work):
        program = folder / "npm"
        program.write_text(f"#!{sys.executable}\nimport shutil, sys\n{work}\n")
        program.chmod(0o755)

    return put


@pytest.fixture
def gives(npm, package, monkeypatch):
    """Put an `npm` there that gives a package, the right one unless told otherwise; its checksum counts as pinned."""

    def put(given=package):
        monkeypatch.setattr(tool, "INTEGRITY", integrity(given))
        name = f"{tool.NAME}-{tool.VERSION}.tgz"
        npm(
            f"assert sys.argv[1:3] == ['pack', '{tool.NAME}@{tool.VERSION}']\n"
            f"(folder,) = [each.split('=', 1)[1] for each in sys.argv if each.startswith('--pack-destination=')]\n"
            f"shutil.copy({str(given)!r}, folder + '/{name}')"
        )

    return put


@pytest.fixture
def target(tmp_path):
    """A folder with what an earlier run left."""
    folder = tmp_path / "static" / "vendor"
    folder.mkdir(parents=True)
    (folder / "earlier").write_text("still here")
    return folder


def isolated(target):
    return [path.name for path in target.parent.iterdir()] == ["vendor"] and (
        [path.name for path in target.iterdir()] == ["earlier"]
    )


def test_all_is_fetched_exported_and_written_in_place_of_what_was_there(gives, target, monkeypatch, capsys):
    pytest.importorskip("onnxscript", reason="exports need the extra 'onnx'")
    monkeypatch.setattr(tool, "MODELS", ("mnist-fcn-dr",))
    monkeypatch.setattr(tool, "PARTS", ("classifier",))
    monkeypatch.setattr(tool, "VENDOR", target)
    gives()
    assert tool.main([]) == 0
    assert f"{tool.NAME} {tool.VERSION} and mnist-fcn-dr" in capsys.readouterr().out
    assert [path.name for path in target.parent.iterdir()] == ["vendor"]
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    written = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    exported = {"mnist-fcn-dr/classifier.onnx", "mnist-fcn-dr/manifest.json"}
    assert written == {*tool.WANTED.values(), *exported, "manifest.json"}
    assert manifest["files"] == {
        name: hashlib.sha256((target / name).read_bytes()).hexdigest() for name in written - {"manifest.json"}
    }
    for member, name in tool.WANTED.items():
        assert (target / name).read_bytes() == CONTENTS[member]
    about = json.loads((target / "mnist-fcn-dr" / "manifest.json").read_text(encoding="utf-8"))
    sizes = [(target / name).stat().st_size for name in (*tool.RUNTIME, "mnist-fcn-dr/classifier.onnx")]
    assert manifest["models"] == {"mnist-fcn-dr": {"weights_sha256": about["weights_sha256"], "bytes": sum(sizes)}}
    assert (manifest["package"], manifest["version"]) == (tool.NAME, tool.VERSION)


def test_another_package_than_the_pinned_one_is_refused(gives, target, monkeypatch):
    gives()
    monkeypatch.setattr(tool, "INTEGRITY", f"sha512-{base64.b64encode(bytes(64)).decode()}")
    with pytest.raises(FileError, match=r"checksum sha512-.*, want sha512-AAAA.*not the published package"):
        tool.vendor(target)
    assert isolated(target)


def test_a_changed_byte_is_noticed(package):
    right = integrity(package)
    tool.check(package, right)
    body = bytearray(package.read_bytes())
    body[len(body) // 2] ^= 1
    package.write_bytes(body)
    with pytest.raises(FileError, match="not the published package"):
        tool.check(package, right)


def test_nothing_leaves_the_folder(tmp_path):
    outside = {"../escaped": b"1", "/tmp/escaped": b"2", "package/../../escaped": b"3", "package/dist/../escaped": b"4"}
    given = archive(tmp_path / "package.tgz", {**outside, **CONTENTS}, links=[("package/escaped", "/etc/passwd")])
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    tool.unpack(given, folder)
    assert {path.name for path in folder.iterdir()} == set(tool.WANTED.values())
    assert list(tmp_path.rglob("escaped")) == []


@pytest.mark.parametrize("name", tool.WANTED)
def test_a_link_in_place_of_a_file_is_refused(gives, target, tmp_path, name):
    rest = {each: body for each, body in CONTENTS.items() if each != name}
    gives(archive(tmp_path / "links.tgz", rest, links=[(name, "/etc/passwd")]))
    with pytest.raises(FileError, match="no regular file"):
        tool.vendor(target)
    assert isolated(target)


def test_a_package_that_lacks_a_file_is_refused(gives, target, tmp_path):
    gives(archive(tmp_path / "lacking.tgz", dict(list(CONTENTS.items())[1:])))
    with pytest.raises(FileError, match=f"lacks {next(iter(tool.WANTED))}"):
        tool.vendor(target)
    assert isolated(target)


def test_a_missing_npm_is_told(tmp_path, target, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="npm is not on the PATH"):
        tool.vendor(target)
    assert isolated(target)


def test_what_npm_complains_of_is_told(npm, target, monkeypatch, capsys):
    npm("sys.exit('npm error network request failed')")
    monkeypatch.setattr(tool, "VENDOR", target)
    assert tool.main([]) == 1
    assert "(npm error network request failed); is there a network?" in capsys.readouterr().err
    npm("pass")
    with pytest.raises(FileError, match="it said nothing"):
        tool.vendor(target)
    assert isolated(target)


def test_an_npm_that_hangs_is_given_up(npm, target, monkeypatch):
    npm("import time; time.sleep(60)")
    monkeypatch.setattr(tool, "PATIENCE", 0.5)
    with pytest.raises(FileError, match=r"longer than 0\.5 s"):
        tool.vendor(target)
    assert isolated(target)


def test_an_export_that_fails_leaves_what_was_there(gives, target, monkeypatch):
    gives()
    monkeypatch.setattr(tool, "MODELS", ("no-such-model",))
    with pytest.raises(InputError, match="no-such-model"):
        tool.vendor(target)
    assert isolated(target)


def test_it_takes_no_arguments(capsys):
    assert tool.main(["--help"]) == 2
    assert "python tools/vendor_onnxruntime.py" in capsys.readouterr().err


def test_the_page_asks_for_what_is_put_there():
    script = (Path(tool.VENDOR).parent / "browser.js").read_text(encoding="utf-8")
    asked = set(re.findall(r'"([\w./-]+\.(?:mjs|wasm))"', script))
    assert asked == {"./vendor/ort.wasm.min.mjs", "ort-wasm-simd-threaded.wasm"}  # the third the runtime finds itself
    assert {name.removeprefix("./vendor/") for name in asked} <= set(tool.RUNTIME)
    assert json.loads(re.search(r"const PARTS = (\[.*\]);", script)[1]) == list(tool.PARTS)
