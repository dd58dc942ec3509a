"""Files appear whole or not at all, and the operating system's errors say what to do."""

import errno
import hashlib
import os

import pytest

from soap._files import atomic
from soap.errors import FileError


def test_the_new_content_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    atomic.write_text(path, "one")
    atomic.write_text(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failure_leaves_the_old_content_and_no_rubbish(tmp_path):
    path = tmp_path / "a.txt"
    atomic.write_text(path, "old")

    def fail_half_way() -> None:
        with atomic.replace_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_so_far_is_kept_where_it_was_asked_for(tmp_path):
    path, before = tmp_path / "a", tmp_path / "b"
    for content in (b"one", b"two", b"three"):
        with atomic.replace_file(path, before) as temporary:
            temporary.write_bytes(content)
    assert (path.read_bytes(), before.read_bytes()) == (b"three", b"two")
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_outlives_what_it_was_made_of(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (tmp_path / "nothing").stat())  # an OSError, as without links
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"one")
    for _ in range(2):  # the second time both names may be the same file already
        atomic.copy(path, other)
    atomic.write_text(path, "two")
    assert (path.read_bytes(), other.read_bytes()) == (b"two", b"one")
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    kept = tmp_path / ".hidden"
    kept.write_text("mine")
    deep = tmp_path / "deep" / f".mine{atomic.TEMPORARY_SUFFIX}"
    deep.parent.mkdir()
    deep.write_text("of a run that may be under way")
    with atomic.replace_file(tmp_path / "a") as temporary:
        temporary.write_text("half")
        left = temporary.with_name(temporary.name.replace(".a.", ".b."))  # as if its writer had been killed here
        left.write_bytes(temporary.read_bytes())
    (tmp_path / "a").unlink()
    assert left.exists()
    atomic.remove_temporary_files(tmp_path)
    atomic.remove_temporary_files(tmp_path / "nowhere")
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == {kept, deep}


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
    atomic.write_text(path, "old")

    def fail(self, *args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pathlib.Path.write_text", fail)
    with pytest.raises(FileError, match=rf"a\.txt: .*{advice}"):
        atomic.write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="a file stands where a folder is wanted"):
        atomic.write_text(tmp_path / "file" / "a.txt", "x")


def test_sha256(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc" * 1000)
    assert atomic.sha256(path) == hashlib.sha256(b"abc" * 1000).hexdigest()
    with pytest.raises(FileError, match="no such file"):
        atomic.sha256(tmp_path / "b")
