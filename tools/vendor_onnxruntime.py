"""Install onnxruntime-web and exported models, so that the page of `soap serve` can run a network in the browser:

    python tools/vendor_onnxruntime.py

npm downloads onnxruntime-web, whose checksum is pinned here. The parts of the bundled digit models are exported beside
it. The folder soap/serve/static/vendor, with a manifest.json, is replaced when everything has succeeded.
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
from soap.onnx_export import export

NAME, VERSION = "onnxruntime-web", "1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""Checksum of the package in npm's registry (dist.integrity)."""

RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
WANTED = {**{f"package/dist/{name}": name for name in RUNTIME}, "package/package.json": "package.json"}
"""Members of the package and their names here. There is no licence file; package.json names the licence."""

MODELS = ("mnist-fcn-dr", "mnist-cnn-dr")
"""Bundled small models with a purifier."""

PARTS = ("classifier", "loss", "step")
"""Without "whole", which does not return the intermediate steps."""

VENDOR = Path(__file__).resolve().parents[1] / "soap" / "serve" / "static" / "vendor"
SCHEMA = "soap-vendor/1"
NPM_TIMEOUT_S = 600


def vendor(target: Path) -> dict[str, Any]:
    """Download, export and replace the folder `target`; return its manifest."""
    with tempfile.TemporaryDirectory() as download, _replace_folder(target) as folder:
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
    """Download the package with npm into `folder`; return its path."""
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(
            f"npm is not on the PATH, but is needed to download {NAME}; install it (Debian: apt-get install npm)."
        )
    command = [npm, "pack", f"{NAME}@{VERSION}", "--ignore-scripts", "--loglevel=error", f"--pack-destination={folder}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=NPM_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise FileError(f"npm took longer than {NPM_TIMEOUT_S} s to download {NAME}; check the network.") from error
    found = list(folder.glob("*.tgz"))
    if done.returncode or len(found) != 1:
        message = " ".join(done.stderr.split())[:400] or "no message"
        raise FileError(f"npm could not download {NAME}@{VERSION} ({message}); check the network.")
    return found[0]


def check(package: Path, integrity: str) -> None:
    """Raise a FileError unless the file has the checksum `integrity`, in npm's format: algorithm-base64."""
    algorithm, _, _ = integrity.partition("-")
    with atomic.file_errors(package), package.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).digest()
    got = f"{algorithm}-{base64.b64encode(digest).decode()}"
    if got != integrity:
        raise FileError(
            f"{package.name} has the checksum {got}, expected {integrity}; it is not the published package."
        )


def unpack(package: Path, folder: Path, wanted: dict[str, str] = WANTED) -> None:
    """Write the `wanted` members of a checked package into `folder`.

    Member names are only compared, never used as paths.
    """
    missing = dict(wanted)
    with tarfile.open(package, "r:gz") as tar:
        for member in tar:
            name = missing.pop(member.name, None)
            if name is None:
                continue
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise FileError(
                    f"{member.name} in {package.name} is not a regular file; it is not the published package."
                )
            with atomic.file_errors(folder / name), content, (folder / name).open("wb") as out:
                shutil.copyfileobj(content, out)
    if missing:
        raise FileError(f"{package.name} lacks {', '.join(missing)}; it is not the published package.")


def _exported(name: str, folder: Path) -> dict[str, Any]:
    """Export the parts of a model into a folder with its name; return its entry in the manifest."""
    print(f"exporting {name}", flush=True)
    done = export(soap.load(name), folder / name, parts=PARTS)
    weights = json.loads((done.folder / "manifest.json").read_text(encoding="utf-8"))["weights_sha256"]
    loaded = [*(folder / file for file in RUNTIME), *done.paths.values()]
    return {"weights_sha256": weights, "bytes": sum(path.stat().st_size for path in loaded)}


@contextmanager
def _replace_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `target` when the block ends without an error."""
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
    """Run the command; return the exit code."""
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
