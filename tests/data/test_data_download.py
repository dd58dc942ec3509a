import hashlib
import io
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from soap.data import download, load
from soap.data.sources import SOURCES, Remote
from soap.errors import FileError, InputError

ARCHIVE = "cifar-10-binary.tar.gz"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_download(tiny, server, tmp_path: Path, name: str) -> None:
    server.files = tiny[name].served
    calls: list[tuple[str, int, int | None]] = []
    folder = download(name, root=tmp_path, mirror=server.url, progress=lambda *call: calls.append(call))
    assert folder == tmp_path / tiny[name].source.folder
    assert content(folder) == tiny[name].files  # exactly these: no part, no archive, no readme
    for file, packed in tiny[name].served.items():
        done = [call for call in calls if call[0] == file]
        assert done[-1] == (file, len(packed), len(packed))
    assert len(load(name, "train", root=tmp_path)) == tiny[name].source.counts["train"]
    asked = len(server.requests)
    assert download(name, root=tmp_path, mirror=server.url) == folder
    assert len(server.requests) == asked  # a second call downloads nothing


def test_a_downloaded_archive_is_reused(tiny, server, tmp_path: Path) -> None:
    """For example after the disk was full while unpacking."""
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / ARCHIVE).write_bytes(tiny["cifar10"].served[ARCHIVE])
    assert content(download("cifar10", root=tmp_path, mirror=server.url)) == tiny["cifar10"].files
    assert server.requests == []


def test_only_missing_or_damaged_files_are_downloaded(tiny, server, tmp_path: Path) -> None:
    server.files = tiny["mnist"].served
    folder = download("mnist", root=tmp_path, mirror=server.url)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"damaged")
    (folder / "train-labels-idx1-ubyte").unlink()
    server.requests.clear()
    download("mnist", root=tmp_path, mirror=server.url)
    assert sorted(name for name, _ in server.requests) == ["t10k-labels-idx1-ubyte.gz", "train-labels-idx1-ubyte.gz"]
    assert content(folder) == tiny["mnist"].files


def test_the_next_mirror_is_tried(tiny, server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files = tiny["mnist"].served
    both = replace(tiny["mnist"].source, mirrors=("http://127.0.0.1:9/", server.url))
    monkeypatch.setitem(SOURCES, "mnist", both)
    assert content(download("mnist", root=tmp_path)) == tiny["mnist"].files


def test_cut_connections_are_resumed(tiny, server, tmp_path: Path) -> None:
    server.files, server.cuts = tiny["cifar10"].served, [1000, 2000, 10]
    folder = download("cifar10", root=tmp_path, mirror=server.url)
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1000-", "bytes=3000-", "bytes=3010-"]
    assert content(folder) == tiny["cifar10"].files


def test_a_later_call_resumes_from_the_partial_file(tiny, server, tmp_path: Path) -> None:
    server.files, server.cuts = tiny["cifar10"].served, [1000, 0, 0, 0, 0]
    with pytest.raises(FileError, match=r"broke 5 times, at 1000 of .*Run the same command again"):
        download("cifar10", root=tmp_path, mirror=server.url)
    folder = tmp_path / "cifar-10-batches-bin"
    assert content(folder) == {f"{ARCHIVE}.part": server.files[ARCHIVE][:1000]}
    server.requests.clear()
    download("cifar10", root=tmp_path, mirror=server.url)
    assert server.requests == [(ARCHIVE, "bytes=1000-")]
    assert content(folder) == tiny["cifar10"].files


def test_a_server_without_ranges_sends_the_whole_file(tiny, server, tmp_path: Path) -> None:
    server.files, server.cuts, server.ranges = tiny["cifar10"].served, [1000], False
    assert content(download("cifar10", root=tmp_path, mirror=server.url)) == tiny["cifar10"].files
    assert len(server.requests) == 2


def test_a_server_that_sends_another_range(tiny, server, tmp_path: Path) -> None:
    server.files, server.cuts, server.wrong_ranges = tiny["cifar10"].served, [1000], True
    assert content(download("cifar10", root=tmp_path, mirror=server.url)) == tiny["cifar10"].files
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1000-", None]


@pytest.mark.parametrize("announce_length", [True, False])
@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_a_partial_file_with_other_content_is_removed(
    tiny, server, tmp_path: Path, excess: int, announce_length: bool
) -> None:
    """The part is shorter than, as long as, and longer than the file."""
    server.files, server.announce_length = tiny["cifar10"].served, announce_length
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / f"{ARCHIVE}.part").write_bytes(b"?" * (len(server.files[ARCHIVE]) + excess))
    assert content(download("cifar10", root=tmp_path, mirror=server.url)) == tiny["cifar10"].files


def test_starting_over_happens_once(tiny, server, tmp_path: Path) -> None:
    """Both the old part and the file from the server have the wrong content."""
    server.files = {ARCHIVE: b"!" * len(tiny["cifar10"].served[ARCHIVE])}
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / f"{ARCHIVE}.part").write_bytes(b"?" * 1000)
    with pytest.raises(FileError, match="It was removed"):
        download("cifar10", root=tmp_path, mirror=server.url)
    assert [wanted for _, wanted in server.requests] == ["bytes=1000-", None]
    assert content(folder) == {}


def test_a_part_longer_than_the_served_file(tiny, server, tmp_path: Path) -> None:
    server.files = {ARCHIVE: b"short"}
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / f"{ARCHIVE}.part").write_bytes(b"?" * 1000)
    with pytest.raises(FileError, match="serves 5 bytes; expected"):
        download("cifar10", root=tmp_path, mirror=server.url)
    assert [wanted for _, wanted in server.requests] == ["bytes=1000-", None]


def test_wrong_content_is_refused_and_removed(tiny, server, tmp_path: Path) -> None:
    damaged = bytearray(tiny["cifar10"].served[ARCHIVE])
    damaged[50] ^= 1
    server.files = {ARCHIVE: bytes(damaged)}
    wanted = tiny["cifar10"].source.remotes[0].sha256
    with pytest.raises(FileError, match=f"received has sha256 [0-9a-f]+; expected {wanted}. It was removed"):
        download("cifar10", root=tmp_path, mirror=server.url)
    assert content(tmp_path / "cifar-10-batches-bin") == {}
    assert len(server.requests) == 1


@pytest.mark.parametrize(("announce_length", "change"), [(True, b"?"), (False, b"?"), (True, b"")])
def test_a_file_of_another_length_is_refused(
    tiny, server, tmp_path: Path, announce_length: bool, change: bytes
) -> None:
    served = tiny["cifar10"].served[ARCHIVE]
    server.files = {ARCHIVE: served + change if change else served[:-1]}
    server.announce_length = announce_length
    with pytest.raises(FileError, match=rf"serves .* {len(served)}"):
        download("cifar10", root=tmp_path, mirror=server.url)


@pytest.mark.parametrize("status", [404, 403, 500, 503])
def test_refusals_of_the_server(tiny, server, tmp_path: Path, status: int) -> None:
    server.status = status
    with pytest.raises(FileError, match=f"the server returned {status} .*soap data import cifar10 DIR"):
        download("cifar10", root=tmp_path, mirror=server.url)
    assert len(server.requests) == 1


def test_no_network(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(FileError, match=r"cannot reach http://127\.0\.0\.1:9/.*Check the network.*soap data import"):
        download("mnist", root=tmp_path, mirror="http://127.0.0.1:9")


def test_bad_arguments(tiny, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown published data set 'cifar'; did you mean"):
        download("cifar", root=tmp_path)
    with pytest.raises(InputError, match="expected an address that begins with https://"):
        download("mnist", root=tmp_path, mirror=tmp_path.as_uri())


def serve_archive(tiny, server, monkeypatch: pytest.MonkeyPatch, packed: bytes) -> None:
    """Make `packed` the published archive of CIFAR-10, with its checksum."""
    remote = Remote(ARCHIVE, len(packed), hashlib.sha256(packed).hexdigest())
    monkeypatch.setitem(SOURCES, "cifar10", replace(tiny["cifar10"].source, remotes=(remote,)))
    server.files = {ARCHIVE: packed}


def archive(files: dict[str, bytes], change: tarfile.TarInfo | None = None, drop: str | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, bytes_ in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(bytes_)
            if name == drop:
                if change is not None:
                    tar.addfile(change, io.BytesIO(bytes(change.size)))
                continue
            tar.addfile(member, io.BytesIO(bytes_))
    return packed.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


TEST = "cifar-10-batches-bin/test_batch.bin"
ARCHIVES = {
    "lacks a file": (None, "does not contain cifar-10-batches-bin/test_batch.bin"),
    "symbolic link": (member(TEST, tarfile.SYMTYPE, "/etc/passwd"), "is not a regular file"),
    "hard link": (member(TEST, tarfile.LNKTYPE, "../../escaped"), "is not a regular file"),
    "device": (member(TEST, tarfile.FIFOTYPE), "is not a regular file"),
    "too long": (member(TEST, size=4 * 3073 + 1), "a file of 12293 bytes; expected a file of 12292"),
    "escape": (member("cifar-10-batches-bin/../../escaped", size=12292), "does not contain"),
    "absolute": (member("/cifar-10-batches-bin/test_batch.bin", size=12292), "does not contain"),
    "other content": (member(TEST, size=4 * 3073), "expected [0-9a-f]{64} .test_batch.bin"),
}


@pytest.mark.parametrize(("change", "says"), ARCHIVES.values(), ids=ARCHIVES.keys())
def test_archives_with_unexpected_content_are_refused(tiny, server, tmp_path: Path, monkeypatch, change, says) -> None:
    serve_archive(tiny, server, monkeypatch, archive(tiny["cifar10"].files, change, drop="test_batch.bin"))
    with pytest.raises(FileError, match=says):
        download("cifar10", root=tmp_path / "root", mirror=server.url)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert set(content(tmp_path / "root" / "cifar-10-batches-bin")) <= {ARCHIVE}


@pytest.mark.parametrize("packed", [b"no archive at all", archive({"readme.html": bytes(30000)})[:-20]])
def test_damaged_archives(tiny, server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bytes) -> None:
    serve_archive(tiny, server, monkeypatch, packed)
    with pytest.raises(FileError, match="the archive is damaged"):
        download("cifar10", root=tmp_path, mirror=server.url)


def test_a_root_that_cannot_be_created_is_an_error(tiny, server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="a part of the path is a file"):
        download("mnist", root=tmp_path / "file", mirror=server.url)
    assert server.requests == []


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit on file sizes to set")
def test_a_full_disk(tiny, server, tmp_path: Path) -> None:
    """The file cannot grow, as on a full disk; the received part is kept."""
    import resource

    server.files = tiny["cifar10"].served
    _, hard = soft_and_hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(FileError, match="the file is larger than this system allows"):
            download("cifar10", root=tmp_path, mirror=server.url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft_and_hard)
    assert content(download("cifar10", root=tmp_path, mirror=server.url)) == tiny["cifar10"].files
