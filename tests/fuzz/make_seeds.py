"""Make the seeds of the corpus, small valid files of every format:

    python tests/fuzz/make_seeds.py tests/fuzz/corpus

The corpus also contains inputs that once caused a failure (found-*); this command does not change them.
"""

import gzip
import io
import json
import struct
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from readers import IDENTITY, PACKED, small_classifier, small_run
from targets import TARGETS

from soap import recipes
from soap._files import checksums
from soap.auxiliary import wrap
from soap.auxiliary.serialization import metadata
from soap.evaluation.run_folder import AttackedBatch, RunFolder
from soap.recipes import generative
from soap.results import Provenance, Row, Store
from soap.specs import AttackSpec, AttackStep, DefenceSpec, TrainingSpec
from soap.training import checkpoint

DRAW = np.random.default_rng(0)

CLASSIFIER = """
name = "small"
data = "mnist-mini"
[model]
architecture = "fcn"
inputs = [1, 1, 2]
classes = 2
dropout = 0.0
[auxiliary]
task = "consistency"
alpha = 1.0
noise = 0.1
[training]
epochs = 1
lr = 0.01
milestones = [0.5]
[purifier]
step_size = 0.1
steps = 5
grid = [0.0, 0.1]
"""
WGAN = """
name = "small-gan"
data = "mnist-mini"
[model]
kind = "wgan"
latent = 2
width = 1
inputs = [1, 4, 4]
[training]
epochs = 1
lr = 5e-4
betas = [0.5, 0.9]
[purifier]
steps = 2
starts = 3
step_size = 10.0
momentum = 0.7
"""
PIXELS = """
name = "small-pixels"
data = "cifar10"
[model]
kind = "pixelcnn"
inputs = [1, 4, 4]
channels = 1
blocks = 1
mixtures = 1
[training]
epochs = 1
lr = 1e-3
[purifier]
eps = "16/255"
"""


def idx() -> dict[str, bytes]:
    digits = DRAW.integers(0, 256, (2, 28, 28), np.uint8)
    images = b"\0\0\x08\x03" + struct.pack(">3I", *digits.shape) + digits.tobytes()
    labels = b"\0\0\x08\x01" + struct.pack(">I", 2) + bytes((3, 7))
    dark = images[:16] + bytes(digits.size)
    return {"images": images, "labels": labels, "dark.gz": gzip.compress(dark, mtime=0)}


def cifar() -> dict[str, bytes]:
    pixels = bytes(range(256)) * 12
    return {"class": b"\x07" + pixels, "fine": b"\x0b\x63" + pixels}


def tar() -> dict[str, bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (("a" * 120, b"hello"), (f"cifar-10-batches-bin/{PACKED.name}", bytes(PACKED.size))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        end = archive.offset
    plain = buffer.getvalue()[:end] + bytes(1024)
    return {"plain": plain, "packed": gzip.compress(plain, mtime=0)}


def weights() -> dict[str, bytes]:
    models = {
        CLASSIFIER: recipes.build(recipes.parse(CLASSIFIER, "seed")),
        WGAN: generative.build(generative.parse(WGAN, "seed")),
        PIXELS: generative.build(generative.parse(PIXELS, "seed")),
    }
    made = {}
    for text, model in models.items():
        tensors = {key: _half(value) for key, value in model.state_dict().items()}
        made[model.name] = packed(tensors, {"recipe": text})
    checked = packed(models[WGAN].state_dict(), {"recipe": WGAN, checksums.CHECKSUM_FIELD: checksums.ZERO_CHECKSUM})
    return {**made, "checked": checked, "small-gan.toml": WGAN.encode()}  # repaired into small-gan


def _half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def packed(tensors: Mapping[str, torch.Tensor], about: Mapping[str, str]) -> bytes:
    """Return a safetensors file, with a checksum only if `about` has one: without it mutants reach later code."""
    content = safetensors.torch.save({key: value.contiguous() for key, value in tensors.items()}, dict(about))
    (length,) = struct.unpack("<Q", content[:8])
    # safetensors writes metadata in any order; sorted, the seeds are reproducible.
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    whole = struct.pack("<Q", len(header)) + header + content[8 + length :]
    return checksums.with_checksum(whole) if checksums.CHECKSUM_FIELD in about else whole


def saved_checkpoint(folder: Path) -> dict[str, bytes]:
    model, optimiser = small_run()
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    extra = {"draws": torch.arange(4, dtype=torch.uint8)}
    checkpoint.save(folder, model, optimiser, extra=extra, state={"step": 3, "epoch": 1}, identity=IDENTITY)
    whole = (folder / checkpoint.NAME).read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    state = json.loads(json.loads(whole[8 : 8 + length])["__metadata__"]["state"])
    # As in older checkpoints: without the version, which changes, and the checksum, which stops mutants early.
    text = json.dumps({**state, "identity": IDENTITY})
    return {"plain": packed(safetensors.torch.load(whole), {"state": text}), "state.json": text.encode()}


def adopted() -> dict[str, bytes]:
    made = {}
    for task in ("consistency", "rotation"):
        model = wrap(small_classifier(), task, shape=(3, 2, 2))
        made[task] = packed(model.state_dict(), metadata(model))
    return {**made, "rotation.json": metadata(model)["adopted"].encode()}  # repaired into rotation


def recipe() -> dict[str, bytes]:
    bundled = [recipes.read(name).text for name in ("mnist-fcn-dr", "cifar10-resnet18-pgd-at", "cifar10-resnet18-lc")]
    named = dict(zip(("reconstruction", "adversarial", "consistency"), bundled, strict=True))
    return {name: text.encode() for name, text in {**named, "gan": WGAN, "pixels": PIXELS}.items()}


def results(folder: Path) -> dict[str, bytes]:
    made_by = Provenance(
        weights_sha256="a" * 64, data_sha256="b" * 64, images="first 10", seed=0, batch_size=5, version="1",
        commit=None, torch="2", python="3", device="cpu", date="2026-01-01",
        training=TrainingSpec(epochs=1, seed=0, precision="fp32"),
    )  # fmt: skip
    store = Store(folder / "rows.jsonl")
    rows = [
        Row(protocol="paper", model="m", data="mnist", attack=AttackSpec(name=attack, steps=(AttackStep(name=attack),)),
            defence=DefenceSpec(name="SOAP", settings={"eps": "oracle"}, eps="oracle"),
            n=10, correct=7, seconds=1.5, provenance=made_by, measures=measures)
        for attack, measures in (("none", {}), ("pgd", {"distance": 0.25}))
    ]  # fmt: skip
    for row in rows:
        store.append(row)
    plain = "".join(json.dumps(row.as_json()) + "\n" for row in rows)
    timing = {"schema": "soap-bench/2", "what": "purify", "model": "m", "case": {"batch_size": 4}, "share": 0.5}
    return {"checked": store.path.read_bytes(), "plain": plain.encode(), "timing": json.dumps(timing).encode() + b"\n"}


def manifest() -> dict[str, bytes]:
    return {"empty": json.dumps({"schema": "soap-export/1", "model": "m", "parts": {}}).encode()}


def picture() -> dict[str, bytes]:
    grey = Image.fromarray(DRAW.integers(0, 256, (28, 28), np.uint8))
    small = Image.fromarray(DRAW.integers(0, 256, (9, 7, 3), np.uint8))
    flat = Image.new("RGBA", (12, 10), (200, 100, 50, 128))
    wide = Image.fromarray(DRAW.integers(0, 65535, (5, 4), np.uint16))
    turned = Image.Exif()
    turned[0x0112] = 6
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "grey.png": (grey, {}), "clear.png": (flat, {"exif": turned}), "deep.png": (wide, {}),
        "palette.png": (small.quantize(8), {"transparency": 1}), "bits.png": (grey.convert("1"), {}),
        "several.png": (small, {"save_all": True, "append_images": [small]}), "small.jpg": (small, {"exif": turned}),
        "scans.jpg": (small, {"progressive": True}), "grey.jpg": (grey, {"quality": 30}),
        "inks.jpg": (small.convert("CMYK"), {}), "small.webp": (small, {"lossless": True}),
        "lossy.webp": (small, {"quality": 20, "exif": turned}), "small.bmp": (small, {}), "palette.bmp": (grey, {}),
    }  # fmt: skip
    made = {}
    for name, (image, options) in kinds.items():
        buffer = io.BytesIO()
        image.save(buffer, {"jpg": "jpeg"}.get(name[-3:], name.rpartition(".")[2]), **options)
        made[name] = buffer.getvalue()
    return made


def json_body() -> dict[str, bytes]:
    rows = [[0.5, 0, 1, 0.25]] * 4
    return {"grey": json.dumps({"image": rows}).encode(), "channel": json.dumps({"image": [rows]}).encode()}


def npz(folder: Path) -> dict[str, bytes]:
    x, y = DRAW.integers(0, 256, (3, 2, 2), np.uint8), np.array([0, 1, 2])
    made = {"bytes": archive(x=x, y=y), "floats": archive(x=x / 255, y=y.astype(np.int8)),
            "splits": archive(x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])}  # fmt: skip
    single = {"x.npy": x, "halves.npy": (x / 255).astype("<f2"), "y.npy": y, "turned.npy": np.asfortranarray(x)}
    for name, array in single.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        made[name] = buffer.getvalue()
    batch = AttackedBatch(rows=y, x=(x[:, None] / 255).astype(np.float32), defended=y, bare=y, seconds=0.5)
    RunFolder(folder).write_batch(None, 0, batch)
    whole = (folder / "clean" / "0000.npz").read_bytes()
    with zipfile.ZipFile(io.BytesIO(whole)) as kept, zipfile.ZipFile(plain := io.BytesIO(), "w") as bare:
        for name in kept.namelist():
            bare.writestr(zipfile.ZipInfo(name), kept.read(name))
    return {**made, "batch": plain.getvalue(), "batch.checked": whole}


def archive(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def main(corpus: Path, scratch: Path) -> None:
    torch.manual_seed(0)
    pictures = picture()
    made = {
        "idx": idx(), "cifar": cifar(), "weights": weights(), "checkpoint": saved_checkpoint(scratch),
        "adopted": adopted(), "recipe": recipe(), "results": results(scratch), "json-body": json_body(),
        "npz": npz(scratch), "archive": tar(), "manifest": manifest(),
        "picture-file": {name: body for name, body in pictures.items() if name != "deep.png"},
        "picture-body": {name: body for name, body in pictures.items() if name.endswith(("png", "jpg"))},
    }  # fmt: skip
    assert set(made) == set(TARGETS)
    for target, seeds in made.items():
        (corpus / target).mkdir(parents=True, exist_ok=True)
        for name, content in seeds.items():
            (corpus / target / f"seed-{name}").write_bytes(content)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]), Path(temporary))
