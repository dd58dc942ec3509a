"""Files appear whole or not at all, and the operating system's errors say what to do."""

import errno
import hashlib
import os

import pytest

from soap import files
from soap.errors import FileError


def test_the_new_content_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    files.write_text(path, "one")
    files.write_text(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failure_leaves_the_old_content_and_no_rubbish(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def fail_half_way() -> None:
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "the disk is full; free some space"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "no permission; choose a folder"),
        (errno.EROFS, "read-only"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_full_or_forbidden_disk_is_one_clear_error(tmp_path, monkeypatch, number, advice):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def fail(self, *args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pathlib.Path.write_text", fail)
    with pytest.raises(FileError, match=rf"a\.txt: .*{advice}"):
        files.write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="a file stands where a folder is wanted"):
        files.write_text(tmp_path / "file" / "a.txt", "x")


def test_sha256(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc" * 1000)
    assert files.sha256(path) == hashlib.sha256(b"abc" * 1000).hexdigest()
    with pytest.raises(FileError, match="no such file"):
        files.sha256(tmp_path / "b")
