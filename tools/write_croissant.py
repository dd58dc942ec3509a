"""Write soap/data/mini/croissant.json, the Croissant metadata (JSON-LD) of mnist-mini; `make render` calls it.

    python tools/write_croissant.py [OUT]

Sizes, hashes, classes and counts come from the files and from `soap.data.sources`. Croissant cannot describe how an IDX
file is parsed, so the record sets list splits and classes, not the digits. Specification:
https://docs.mlcommons.org/croissant/docs/croissant-spec.html
"""

import json
import sys
from pathlib import Path
from typing import Any

from soap._files import atomic
from soap.data.sources import MINI, MINI_NAME

FILE = "croissant.json"
PLAIN = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet", "format",
    "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
    "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{name: f"cr:{name}" for name in PLAIN},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
"""The context of every Croissant 1.0 file, as its specification prints it."""


def record_set(name: str, kind: str, description: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a record set whose records are inside the metadata; every value is a field of the first record."""
    types = {key: "sc:Integer" if isinstance(value, int) else "sc:Text" for key, value in records[0].items()}
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "dataType": kind,
        "description": description,
        "key": {"@id": f"{name}/name"},
        "field": [
            {"@type": "cr:Field", "@id": f"{name}/{key}", "name": key, "dataType": of} for key, of in types.items()
        ],
        "data": [{f"{name}/{key}": value for key, value in record.items()} for record in records],
    }


def metadata() -> dict[str, Any]:
    """Return the metadata of the bundled files."""
    folder = Path(MINI.folder)
    files = [
        {
            "@type": "cr:FileObject",
            "@id": file.name,
            "name": file.name,
            "description": f"{'Digits' if 'images' in file.name else 'Labels'} of the {file.split} split: gzipped IDX.",
            "contentUrl": file.name,
            "contentSize": f"{(folder / file.name).stat().st_size} B",
            "encodingFormat": "application/gzip",
            "sha256": atomic.sha256(folder / file.name),
        }
        for file in MINI.files
    ]
    splits = [
        {"name": split, "url": f"https://mlcommons.org/definitions/{'training' if split == 'train' else 'test'}_split",
         "examples": count, "sha256": MINI.content[split]}
        for split, count in MINI.counts.items()
    ]  # fmt: skip
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": MINI_NAME,
        "description": (
            "12,000 grey 28 x 28 digits of MNIST: the first 1,000 training and the first 200 test digits of each "
            "class, unchanged, with the classes taking turns. For examples and tests; use the whole MNIST for results."
        ),
        "license": "https://creativecommons.org/licenses/by-sa/3.0/",
        "url": "http://yann.lecun.com/exdb/mnist/",
        "isBasedOn": "http://yann.lecun.com/exdb/mnist/",
        "creator": [{"@type": "sc:Person", "name": name} for name in ("Yann LeCun", "Corinna Cortes")],
        "datePublished": "2026-11-15",
        "version": "1.0.0",
        "citeAs": (
            "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document recognition, "
            "Proceedings of the IEEE 86(11):2278-2324, November 1998"
        ),
        "distribution": files,
        "recordSet": [
            record_set("splits", "cr:Split", "Examples and content hash of each split.", splits),
            record_set("digits", "sc:Enumeration", "Classes; a label is the number of its class.",
                       [{"name": name, "label": label} for label, name in enumerate(MINI.classes)]),
        ],
    }  # fmt: skip


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(MINI.folder) / FILE
    atomic.write_text(out, json.dumps(metadata(), indent=1) + "\n")
