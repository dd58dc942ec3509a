"""The Croissant metadata of mnist-mini: up to date, with the required fields, and true of the files."""

import hashlib
import json
from pathlib import Path

from write_croissant import FILE, metadata

import soap
from soap.data.sources import MINI

CONTENT = json.loads((Path(MINI.folder) / FILE).read_text())


def test_the_committed_file_is_what_the_tool_writes():
    assert metadata() == CONTENT


def test_required_fields_and_references():
    required = {"@context", "@type", "conformsTo", "name", "description", "license", "url", "creator", "datePublished"}
    assert required <= CONTENT.keys()
    assert (CONTENT["@type"], CONTENT["conformsTo"]) == ("sc:Dataset", "http://mlcommons.org/croissant/1.0")
    for one in CONTENT["recordSet"]:
        assert {"@type", "@id", "name", "field", "data"} <= one.keys()
        fields = {field["@id"] for field in one["field"]}
        assert one["key"]["@id"] in fields
        assert all(record.keys() == fields for record in one["data"])


def test_files_splits_and_classes_are_those_of_the_data():
    found = {file["contentUrl"]: file for file in CONTENT["distribution"]}
    assert {path.name for path in Path(MINI.folder).glob("*.gz")} == found.keys()
    for name, file in found.items():
        content = (Path(MINI.folder) / name).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
        assert file["contentSize"] == f"{len(content)} B"
    splits, digits = (one["data"] for one in CONTENT["recordSet"])
    for split in splits:
        data = soap.data.load("mnist-mini", split["splits/name"])
        assert (len(data), data.sha256) == (split["splits/examples"], split["splits/sha256"])
        assert [one["digits/name"] for one in digits] == list(data.classes)
