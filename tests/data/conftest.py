"""Tiny data sets with the published formats and names, and a server with faults."""

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from soap.data.sources import SOURCES, DataFile, Remote, Source


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def tar(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def mnist_files() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    files = {}
    for prefix, n in ("train", 20), ("t10k", 10):
        files[f"{prefix}-images-idx3-ubyte"] = idx(random.integers(0, 256, (n, 28, 28), np.uint8))
        files[f"{prefix}-labels-idx1-ubyte"] = idx(np.arange(n, dtype=np.uint8) % 10)
    return files


def cifar_files(names: list[str], n: int, *label_counts: int) -> dict[str, bytes]:
    random = np.random.default_rng(1)
    files = {}
    for name in names:
        labels = [random.integers(0, count, (n, 1)) for count in label_counts]
        pixels = random.integers(0, 256, (n, 3072))
        files[name] = np.hstack([*labels, pixels]).astype(np.uint8).tobytes()
    return files


@dataclass
class Tiny:
    """A tiny data set: its source, its unpacked files, and the files that a mirror serves."""

    source: Source
    files: dict[str, bytes]
    served: dict[str, bytes]


def shrink(source: Source, files: dict[str, bytes], counts: dict[str, int]) -> Tiny:
    if source.remotes[0].name.endswith(".tar.gz"):
        members = {f"{source.folder}/readme.html": b"hello"}
        members |= {f"{source.folder}/{name}": content for name, content in files.items()}
        served = {source.remotes[0].name: tar(members)}
    else:
        served = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}
    tiny = replace(
        source,
        remotes=tuple(Remote(name, len(made), sha256(made)) for name, made in served.items()),
        files=tuple(
            DataFile(file.name, file.split, len(files[file.name]), file.sha256 and sha256(files[file.name]))
            for file in source.files
        ),
        counts=counts,
        content={},
    )
    return Tiny(tiny, files, served)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tiny]:
    """Replace the published data sets by tiny ones during a test."""
    batches = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
    made = {
        "mnist": shrink(SOURCES["mnist"], mnist_files(), {"train": 20, "test": 10}),
        "cifar10": shrink(SOURCES["cifar10"], cifar_files(batches, 4, 10), {"train": 20, "test": 4}),
        "cifar100": shrink(
            SOURCES["cifar100"], cifar_files(["train.bin", "test.bin"], 4, 20, 100), {"train": 4, "test": 4}
        ),
    }
    for name, data in made.items():
        monkeypatch.setitem(SOURCES, name, data.source)
    return made


@dataclass
class Server:
    """The files of the server and its faults; `cuts` are byte counts after which the next responses break off."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    wrong_ranges: bool = False
    status: int | None = None
    announce_length: bool = True
    cuts: list[int] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name, wanted = self.path.rpartition("/")[2], self.headers.get("Range")
            state.requests.append((name, wanted))
            if state.status is not None or name not in state.files:
                self.send_error(state.status or 404)
                return
            content, start = state.files[name], 0
            if wanted is not None and state.ranges:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                start = 0 if state.wrong_ranges else start
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            if state.announce_length:
                self.send_header("Content-Length", str(len(content) - start))
            self.send_header("Connection", "close")
            self.end_headers()
            cut = state.cuts.pop(0) if state.cuts else len(content)
            self.wfile.write(content[start : start + cut])
            self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        state = Server(url=f"http://127.0.0.1:{running.server_port}/")
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            running.shutdown()
            thread.join()
