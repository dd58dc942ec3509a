"""Put what the page of `soap serve` needs to run a network in the browser alone where the service finds it:

    python tools/vendor_onnxruntime.py

npm fetches onnxruntime-web, whose checksum is pinned here; the parts of the bundled digit models are exported beside
it. All goes to soap/serve/static/vendor, with a manifest.json, or nothing does: what was there before stays until then.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import soap
from soap._files import atomic
from soap.errors import FileError, InputError, SoapError
from soap.export import export

NAME, VERSION = "onnxruntime-web", "1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""Of the package as npm's registry has it (dist.integrity)."""

RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
WANTED = {**{f"package/dist/{name}": name for name in RUNTIME}, "package/package.json": "package.json"}
"""Members of the package, and what they are called here. It has no licence file; its package.json names the licence."""

MODELS = ("mnist-fcn-dr", "mnist-cnn-dr")
"""Bundled, small, with a purifier."""

PARTS = ("classifier", "loss", "step")
"""Not the whole, which tells no step on the way."""

VENDOR = Path(__file__).resolve().parents[1] / "soap" / "serve" / "static" / "vendor"
SCHEMA = "soap-vendor/1"
PATIENCE = 600
"""Seconds for npm."""


def vendor(target: Path) -> dict[str, Any]:
    """Fetch, export and write everything in place of the folder `target`; returns its manifest."""
    with tempfile.TemporaryDirectory() as download, _replacing(target) as folder:
        package = packed(Path(download))
        check(package, INTEGRITY)
        unpack(package, folder)
        models = {name: _exported(name, folder) for name in MODELS}
        manifest = {
            "schema": SCHEMA,
            "package": NAME,
            "version": VERSION,
            "integrity": INTEGRITY,
            "models": models,
            "files": {
                path.relative_to(folder).as_posix(): atomic.sha256(path)
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            },
        }
        atomic.write_text(folder / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    return manifest


def packed(folder: Path) -> Path:
    """The package as npm fetches it into `folder`."""
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(f"npm is not on the PATH, but fetches {NAME}; install it (Debian: apt-get install npm).")
    command = [npm, "pack", f"{NAME}@{VERSION}", "--ignore-scripts", "--loglevel=error", f"--pack-destination={folder}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise FileError(f"npm took longer than {PATIENCE} s to fetch {NAME}; is there a network?") from error
    found = list(folder.glob("*.tgz"))
    if done.returncode or len(found) != 1:
        said = " ".join(done.stderr.split())[:400] or "it said nothing"
        raise FileError(f"npm could not fetch {NAME}@{VERSION} ({said}); is there a network?")
    return found[0]


def check(package: Path, integrity: str) -> None:
    """Raise unless the file's checksum is `integrity`, written as npm does: the algorithm, then base64."""
    algorithm, _, _ = integrity.partition("-")
    with atomic.file_errors(package), package.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).digest()
    got = f"{algorithm}-{base64.b64encode(digest).decode()}"
    if got != integrity:
        raise FileError(f"{package.name} has the checksum {got}, want {integrity}; it is not the published package.")


def unpack(package: Path, folder: Path, wanted: dict[str, str] = WANTED) -> None:
    """Write the `wanted` members of a checked package into `folder`.

    A member's name is compared, never used as a path.
    """
    missing = dict(wanted)
    with tarfile.open(package, "r:gz") as tar:
        for member in tar:
            name = missing.pop(member.name, None)
            if name is None:
                continue
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise FileError(f"{member.name} in {package.name} is no regular file; it is not as published.")
            with atomic.file_errors(folder / name), content, (folder / name).open("wb") as out:
                shutil.copyfileobj(content, out)
    if missing:
        raise FileError(f"{package.name} lacks {', '.join(missing)}; it is not the published package.")


def _exported(name: str, folder: Path) -> dict[str, Any]:
    """Export the parts of a model into a folder of its name; what the service must know of them."""
    print(f"exporting {name}", flush=True)
    done = export(soap.load(name), folder / name, parts=PARTS)
    weights = json.loads((done.folder / "manifest.json").read_text(encoding="utf-8"))["weights_sha256"]
    loaded = [*(folder / file for file in RUNTIME), *done.paths.values()]
    return {"weights_sha256": weights, "bytes": sum(path.stat().st_size for path in loaded)}


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, which takes its place when the block ends well."""
    with atomic.file_errors(target):
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=atomic.TEMPORARY_SUFFIX))
    try:
        new, old = scratch / "new", scratch / "old"
        new.mkdir()
        yield new
        with atomic.file_errors(target):
            if target.exists():
                target.rename(old)
            new.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        manifest = vendor(VENDOR)
    except SoapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in VENDOR.rglob("*") if path.is_file())
    print(f"{VENDOR}: {NAME} {VERSION} and {', '.join(manifest['models'])}, {size / 1e6:.1f} MB; restart `soap serve`.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
