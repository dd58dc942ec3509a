"""tools/vendor_onnxruntime.py downloads, checks and installs everything, or changes nothing."""

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
    """Write a package like npm's: files with `contents` by name, and `links` (name, target)."""
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
    """A valid package with additional files."""
    more = {"package/README.md": b"read me", "package/dist/ort.js": b"ort"}
    return archive(tmp_path / "package.tgz", {**more, **CONTENTS})


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Return a function that puts an `npm` that runs `work` on the PATH, without other programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(work):
        program = folder / "npm"
        program.write_text(f"#!{sys.executable}\nimport shutil, sys\n{work}\n")
        program.chmod(0o755)

    return put


@pytest.fixture
def npm_delivers(npm, package, monkeypatch):
    """Return a function that installs an `npm` that delivers a package, and pins the checksum of that package."""

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
    """A folder with the result of an earlier run."""
    folder = tmp_path / "static" / "vendor"
    folder.mkdir(parents=True)
    (folder / "earlier").write_text("still here")
    return folder


def unchanged(target):
    return [path.name for path in target.parent.iterdir()] == ["vendor"] and (
        [path.name for path in target.iterdir()] == ["earlier"]
    )


def test_everything_is_downloaded_exported_and_replaced(npm_delivers, target, monkeypatch, capsys):
    pytest.importorskip("onnxscript", reason="exports need the extra 'onnx'")
    monkeypatch.setattr(tool, "MODELS", ("mnist-fcn-dr",))
    monkeypatch.setattr(tool, "PARTS", ("classifier",))
    monkeypatch.setattr(tool, "VENDOR", target)
    npm_delivers()
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


def test_package_with_another_checksum_is_refused(npm_delivers, target, monkeypatch):
    npm_delivers()
    monkeypatch.setattr(tool, "INTEGRITY", f"sha512-{base64.b64encode(bytes(64)).decode()}")
    with pytest.raises(FileError, match=r"checksum sha512-.*, expected sha512-AAAA.*not the published package"):
        tool.vendor(target)
    assert unchanged(target)


def test_changed_byte_is_detected(package):
    right = integrity(package)
    tool.check(package, right)
    body = bytearray(package.read_bytes())
    body[len(body) // 2] ^= 1
    package.write_bytes(body)
    with pytest.raises(FileError, match="not the published package"):
        tool.check(package, right)


def test_members_are_not_written_outside_the_folder(tmp_path):
    outside = {"../escaped": b"1", "/tmp/escaped": b"2", "package/../../escaped": b"3", "package/dist/../escaped": b"4"}
    given = archive(tmp_path / "package.tgz", {**outside, **CONTENTS}, links=[("package/escaped", "/etc/passwd")])
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    tool.unpack(given, folder)
    assert {path.name for path in folder.iterdir()} == set(tool.WANTED.values())
    assert list(tmp_path.rglob("escaped")) == []


@pytest.mark.parametrize("name", tool.WANTED)
def test_link_in_place_of_a_file_is_refused(npm_delivers, target, tmp_path, name):
    rest = {each: body for each, body in CONTENTS.items() if each != name}
    npm_delivers(archive(tmp_path / "links.tgz", rest, links=[(name, "/etc/passwd")]))
    with pytest.raises(FileError, match="not a regular file"):
        tool.vendor(target)
    assert unchanged(target)


def test_package_without_a_needed_file_is_refused(npm_delivers, target, tmp_path):
    npm_delivers(archive(tmp_path / "lacking.tgz", dict(list(CONTENTS.items())[1:])))
    with pytest.raises(FileError, match=f"lacks {next(iter(tool.WANTED))}"):
        tool.vendor(target)
    assert unchanged(target)


def test_missing_npm_is_reported(tmp_path, target, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="npm is not on the PATH"):
        tool.vendor(target)
    assert unchanged(target)


def test_error_message_of_npm_is_reported(npm, target, monkeypatch, capsys):
    npm("sys.exit('npm error network request failed')")
    monkeypatch.setattr(tool, "VENDOR", target)
    assert tool.main([]) == 1
    assert "(npm error network request failed); check the network." in capsys.readouterr().err
    npm("pass")
    with pytest.raises(FileError, match="no message"):
        tool.vendor(target)
    assert unchanged(target)


def test_npm_that_hangs_times_out(npm, target, monkeypatch):
    npm("import time; time.sleep(60)")
    monkeypatch.setattr(tool, "NPM_TIMEOUT_S", 0.5)
    with pytest.raises(FileError, match=r"longer than 0\.5 s"):
        tool.vendor(target)
    assert unchanged(target)


def test_failed_export_keeps_the_old_files(npm_delivers, target, monkeypatch):
    npm_delivers()
    monkeypatch.setattr(tool, "MODELS", ("no-such-model",))
    with pytest.raises(InputError, match="no-such-model"):
        tool.vendor(target)
    assert unchanged(target)


def test_arguments_are_refused(capsys):
    assert tool.main(["--help"]) == 2
    assert "python tools/vendor_onnxruntime.py" in capsys.readouterr().err


def test_page_requests_the_installed_files():
    script = (Path(tool.VENDOR).parent / "browser.js").read_text(encoding="utf-8")
    requested = set(re.findall(r'"([\w./-]+\.(?:mjs|wasm))"', script))
    assert requested == {
        "./vendor/ort.wasm.min.mjs",
        "ort-wasm-simd-threaded.wasm",
    }  # the runtime loads the third file itself
    assert {name.removeprefix("./vendor/") for name in requested} <= set(tool.RUNTIME)
    assert json.loads(re.search(r"const PARTS = (\[.*\]);", script)[1]) == list(tool.PARTS)
