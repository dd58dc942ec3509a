"""Content that carries its own checksum: every flipped bit and every missing end is noticed."""

import hashlib
import json

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soap._files import checksums, tensor_files
from soap.errors import FileError


def flipped(content: bytes):
    """The content with each of its bits flipped, one at a time."""
    for place in range(len(content)):
        for bit in range(8):
            yield content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def test_the_checksum_is_that_of_the_content_with_its_own_digits_as_zeros():
    text = checksums.dumps({"a": 1}, "\n", indent=1)
    stated = json.loads(text)["checksum"]
    blank = text.replace(stated, "sha256:" + 64 * "0")
    assert stated == "sha256:" + hashlib.sha256(blank.encode()).hexdigest()


@settings(max_examples=50)
@given(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False) | st.booleans()), st.sampled_from(["", "\n"]))
def test_what_is_written_is_read_back(content, end):
    content.pop("checksum", None)
    assert checksums.loads(checksums.dumps(content, end).encode()) == content


def test_every_flipped_bit_and_every_missing_end_of_a_text_is_noticed():
    text = checksums.dumps({"name": "a", "numbers": [1e5, 1e-7]}, "\n", sort_keys=True).encode()
    for damaged in [*flipped(text), *(text[:cut] for cut in range(len(text)))]:
        with pytest.raises(ValueError):
            checksums.loads(damaged)


def test_every_flipped_bit_and_every_missing_end_of_tensors_is_named(tmp_path):
    path = tmp_path / "t.safetensors"
    tensor_files.save_tensors(path, {"w": torch.arange(3.0), "n": torch.tensor(7)}, {"recipe": 'x = "checksum"'})
    whole = path.read_bytes()
    for damaged in [*flipped(whole), *(whole[:cut] for cut in range(len(whole)))]:
        path.write_bytes(damaged)
        with pytest.raises(FileError, match=r"t\.safetensors: not a complete safetensors file"):
            tensor_files.load_tensors(path)
    path.write_bytes(whole)
    tensors, metadata = tensor_files.load_tensors(path)
    assert torch.equal(tensors["w"], torch.arange(3.0))
    assert metadata == {"recipe": 'x = "checksum"'}


def test_content_of_before_there_were_checksums_is_taken_as_it_is(tmp_path):
    assert checksums.loads(b'{"a": 1}') == {"a": 1}
    path = tmp_path / "old.safetensors"
    path.write_bytes(safetensors.torch.save({"w": torch.ones(2)}, {"recipe": "r"}))
    assert tensor_files.load_tensors(path)[1] == {"recipe": "r"}


def test_a_placeholder_in_the_content_is_not_taken_for_the_field():
    text = checksums.dumps({"quoted": f'"checksum": "{checksums.ZERO_CHECKSUM}"', "plain": checksums.ZERO_CHECKSUM})
    assert checksums.loads(text.encode())["plain"] == checksums.ZERO_CHECKSUM
    with pytest.raises(ValueError, match="no blank"):
        checksums.with_checksum(b'{"checksum": 1}')


BAD = [
    (b"[]", "holds no names"),
    (b"{", "Expecting"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"checksum": 1}', "its checksum is none"),
    (b'{"checksum": "sha256:00"}', "its checksum is none"),
    (b'{"chocksum": "sha256:' + 64 * b"0" + b'"}', "another name"),
    (b'{"checksum": "sha256:' + 64 * b"0" + b'"}', "does not match"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message for _, message in BAD])
def test_damage_is_named(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(FileError, match=rf"a\.json: .*{message}.*; make it again\."):
        checksums.read_json(path, "make it again")
