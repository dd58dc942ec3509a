"""soap._files: atomic writes, errors of the operating system, checksums, limits of tensor files."""

import errno
import hashlib
import json
import os
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soap._files import atomic, checksums, tensor_files
from soap.errors import FileError

# --- Atomic writes ----------------------------------------------------------------------------------------------


def test_new_content_replaces_the_old(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    atomic.write_text(path, "one")
    atomic.write_text(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_failed_write_keeps_the_old_content_and_removes_the_temporary_file(tmp_path):
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


def test_previous_keeps_the_replaced_content(tmp_path):
    path, previous = tmp_path / "a", tmp_path / "b"
    for content in (b"one", b"two", b"three"):
        with atomic.replace_file(path, previous) as temporary:
            temporary.write_bytes(content)
    assert (path.read_bytes(), previous.read_bytes()) == (b"three", b"two")
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}


@pytest.mark.parametrize("links", [True, False])
def test_copy_is_independent_of_later_replacements(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (tmp_path / "nothing").stat())  # raises OSError
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"one")
    for _ in range(2):  # the second time both names may be the same file already
        atomic.copy(path, other)
    atomic.write_text(path, "two")
    assert (path.read_bytes(), other.read_bytes()) == (b"two", b"one")
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}


def test_only_temporary_files_directly_in_the_folder_are_removed(tmp_path):
    kept = tmp_path / ".hidden"
    kept.write_text("mine")
    deep = tmp_path / "deep" / f".mine{atomic.TEMPORARY_SUFFIX}"
    deep.parent.mkdir()
    deep.write_text("of a run that may be active")
    with atomic.replace_file(tmp_path / "a") as temporary:
        temporary.write_text("half")
        left = temporary.with_name(temporary.name.replace(".a.", ".b."))  # as if its writer had been killed here
        left.write_bytes(temporary.read_bytes())
    (tmp_path / "a").unlink()
    assert left.exists()
    atomic.remove_temporary_files(tmp_path)
    atomic.remove_temporary_files(tmp_path / "missing")
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
def test_disk_errors_are_file_errors_with_advice(tmp_path, monkeypatch, number, advice):
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


def test_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="a file exists, expected a folder"):
        atomic.write_text(tmp_path / "file" / "a.txt", "x")


def test_sha256_of_a_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc" * 1000)
    assert atomic.sha256(path) == hashlib.sha256(b"abc" * 1000).hexdigest()
    with pytest.raises(FileError, match="no such file"):
        atomic.sha256(tmp_path / "b")


# --- Checksums --------------------------------------------------------------------------------------------------


def damaged(content: bytes):
    """Yield the content with each of its bits flipped, one at a time, and cut off at each byte."""
    for place in range(len(content)):
        for bit in range(8):
            yield content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    for place in range(len(content)):
        yield content[:place]


def test_checksum_covers_the_content_with_its_own_digits_as_zeros():
    text = checksums.dumps({"a": 1}, "\n", indent=1)
    stated = json.loads(text)["checksum"]
    blank = text.replace(stated, "sha256:" + 64 * "0")
    assert stated == "sha256:" + hashlib.sha256(blank.encode()).hexdigest()


@settings(max_examples=50)
@given(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False) | st.booleans()), st.sampled_from(["", "\n"]))
def test_loads_returns_what_dumps_wrote(content, end):
    content.pop("checksum", None)
    assert checksums.loads(checksums.dumps(content, end).encode()) == content


def test_every_flipped_bit_and_truncation_of_a_text_is_detected():
    text = checksums.dumps({"name": "a", "numbers": [1e5, 1e-7]}, "\n", sort_keys=True).encode()
    for content in damaged(text):
        with pytest.raises(ValueError):
            checksums.loads(content)


def test_every_flipped_bit_and_truncation_of_a_tensor_file_is_detected(tmp_path):
    path = tmp_path / "t.safetensors"
    tensor_files.save_tensors(path, {"w": torch.arange(3.0), "n": torch.tensor(7)}, {"recipe": 'x = "checksum"'})
    intact = path.read_bytes()
    for content in damaged(intact):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"t\.safetensors: not a complete safetensors file"):
            tensor_files.load_tensors(path)
    path.write_bytes(intact)
    tensors, metadata = tensor_files.load_tensors(path)
    assert torch.equal(tensors["w"], torch.arange(3.0))
    assert metadata == {"recipe": 'x = "checksum"'}


def test_content_of_older_versions_without_a_checksum_is_accepted(tmp_path):
    assert checksums.loads(b'{"a": 1}') == {"a": 1}
    path = tmp_path / "old.safetensors"
    path.write_bytes(safetensors.torch.save({"w": torch.ones(2)}, {"recipe": "r"}))
    assert tensor_files.load_tensors(path)[1] == {"recipe": "r"}


def test_placeholder_inside_other_fields_is_not_filled_in():
    text = checksums.dumps({"quoted": f'"checksum": "{checksums.ZERO_CHECKSUM}"', "plain": checksums.ZERO_CHECKSUM})
    assert checksums.loads(text.encode())["plain"] == checksums.ZERO_CHECKSUM
    with pytest.raises(ValueError, match="no checksum placeholder"):
        checksums.with_checksum(b'{"checksum": 1}')


BAD = [
    (b"[]", "not a JSON object"),
    (b"{", "Expecting"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"checksum": 1}', "checksum is not a SHA-256"),
    (b'{"checksum": "sha256:00"}', "checksum is not a SHA-256"),
    (b'{"chocksum": "sha256:' + 64 * b"0" + b'"}', "misspelled"),
    (b'{"checksum": "sha256:' + 64 * b"0" + b'"}', "does not match"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message for _, message in BAD])
def test_damaged_json_is_refused_with_path_reason_and_advice(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(FileError, match=rf"a\.json: .*{message}.*; make it again\."):
        checksums.read_json(path, "make it again")


# --- Tensor files -----------------------------------------------------------------------------------------------


def test_tensor_with_more_dimensions_than_torch_supports_is_refused(tmp_path):
    path = tmp_path / "deep.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(FileError, match=r"deep.safetensors: tensor 'a' has 65 dimensions, expected at most 64"):
        tensor_files.load_tensors(path)
