"""Malicious archives: only the expected file is written, in its folder and with its size."""

import gzip
import hashlib
import io
import tarfile
from contextlib import suppress
from dataclasses import replace

import pytest

from soap.data.downloads import unpack, verify_file
from soap.data.sources import SOURCES
from soap.errors import FileError

SOURCE = SOURCES["cifar10"]
WANTED = replace(SOURCE.files[-1], size=3073, sha256=hashlib.sha256(bytes(3073)).hexdigest())
NAME = f"{SOURCE.folder}/{WANTED.name}"
GOOD = (NAME, {}, bytes(3073))


def packed(*members, pax=None):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, fields, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), pax or {}
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def special(kind, link=""):
    return {"type": kind, "linkname": link}


BEFORE = {
    "a file above": ("../../escaped", {}, b"harm"),
    "a file above, under the folder's name": (f"{SOURCE.folder}/../../escaped", {}, b"harm"),
    "an absolute path": ("/escaped", {}, b"harm"),
    "a link to above": (f"{SOURCE.folder}/away", special(tarfile.SYMTYPE, "../.."), b""),
    "the folder as a link": (SOURCE.folder, special(tarfile.SYMTYPE, "/"), b""),
    "a hard link": (f"{SOURCE.folder}/away", special(tarfile.LNKTYPE, "/etc/passwd"), b""),
    "a device": (f"{SOURCE.folder}/null", special(tarfile.CHRTYPE), b""),
    "a disk": (f"{SOURCE.folder}/disk", special(tarfile.BLKTYPE), b""),
    "a pipe": (f"{SOURCE.folder}/pipe", special(tarfile.FIFOTYPE), b""),
    "a folder": (f"{SOURCE.folder}/more", special(tarfile.DIRTYPE), b""),
    "many zeros": ("zeros", {}, bytes(2**24)),
}
INSTEAD = {
    "a link": ((NAME, special(tarfile.SYMTYPE, "/etc/passwd"), b""), "is not a regular file"),
    "a hard link": ((NAME, special(tarfile.LNKTYPE, "/etc/passwd"), b""), "is not a regular file"),
    "a device": ((NAME, special(tarfile.CHRTYPE), b""), "is not a regular file"),
    "a disk": ((NAME, special(tarfile.BLKTYPE), b""), "is not a regular file"),
    "a pipe": ((NAME, special(tarfile.FIFOTYPE), b""), "is not a regular file"),
    "a folder": ((NAME, special(tarfile.DIRTYPE), b""), "is not a regular file"),
    "a bomb": ((NAME, {}, bytes(2**24)), "a file of 16777216 bytes; expected a file of 3073"),
    "nothing": ((NAME, {}, b""), "a file of 0 bytes; expected a file of 3073"),
    "above": ((f"../{NAME}", {}, bytes(3073)), "does not contain"),
    "elsewhere": ((f"{SOURCE.folder}/x/../{WANTED.name}", {}, bytes(3073)), "does not contain"),
    "absolute": ((f"/{NAME}", {}, bytes(3073)), "does not contain"),
}


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def places(tmp_path):
    """The path of an archive and a folder to unpack it into, both deep enough to test an escape."""
    (tmp_path / "a" / "b" / "target").mkdir(parents=True)
    return tmp_path / "a" / "b" / "some.tar.gz", tmp_path / "a" / "b" / "target"


@pytest.mark.parametrize("other", BEFORE.values(), ids=BEFORE)
def test_other_members_are_skipped(tmp_path, places, other):
    archive, target = places
    archive.write_bytes(packed(other, GOOD))
    unpack(archive, (WANTED,), SOURCE, target)
    assert (target / WANTED.name).read_bytes() == GOOD[2]
    assert everything(tmp_path) == ["a", "a/b", "a/b/some.tar.gz", "a/b/target", f"a/b/target/{WANTED.name}"]


@pytest.mark.parametrize(("member", "says"), INSTEAD.values(), ids=INSTEAD)
def test_a_member_that_is_not_the_expected_file_is_refused(tmp_path, places, member, says):
    archive, target = places
    archive.write_bytes(packed(member))
    with pytest.raises(FileError, match=says):
        unpack(archive, (WANTED,), SOURCE, target)
    assert everything(tmp_path) == ["a", "a/b", "a/b/some.tar.gz", "a/b/target"]


@pytest.mark.parametrize("pax", [{"path": "../../escaped"}, {"linkpath": "/etc"}, {"size": "9" * 40}, {"size": "-1"}])
def test_extended_headers_cannot_escape_the_folder(tmp_path, places, pax):
    archive, target = places
    archive.write_bytes(packed((NAME, {}, bytes(3073)), pax=pax))
    with suppress(FileError):
        unpack(archive, (WANTED,), SOURCE, target)
    assert {*everything(tmp_path)} <= {"a", "a/b", "a/b/some.tar.gz", "a/b/target", f"a/b/target/{WANTED.name}"}


def test_unpacking_reads_at_most_one_byte_too_many(places):
    """A gzip bomb of 64 MB in 64 kB is read to the expected size and one byte more, then refused."""
    archive, target = places
    bomb = archive.with_name("t10k-labels-idx1-ubyte.gz")
    bomb.write_bytes(gzip.compress(bytes(2**26)))
    wanted = replace(SOURCES["mnist"].files[-1], size=1000)
    with pytest.raises(FileError, match="has more than 1000 bytes"):
        unpack(bomb, (wanted,), SOURCES["mnist"], target)
    assert (target / wanted.name).stat().st_size == 1001
    with pytest.raises(FileError, match="has more than 1000 bytes"):
        verify_file(bomb, wanted, SOURCES["mnist"])
