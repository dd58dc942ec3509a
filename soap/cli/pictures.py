"""The user's own pictures in: image files, folders of them, and .npz files, as the model takes them."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from soap import validate
from soap._files import atomic
from soap.data.arrays import read_arrays
from soap.data.folder import COLOUR_MODES, GREY_MODES, SUFFIXES
from soap.data.image_file import opened
from soap.errors import FileError, InputError
from soap.shapes import Float, Int, Tensor

SHEET = "side-by-side.png"
"""The picture that `soap attack` and `soap purify` draw; left out when a folder is read."""


@runtime_checkable
class TakesImages(Protocol):
    """A model as far as pictures are concerned: what it is called, the images it takes, and where its weights are."""

    name: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels, height and width."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its weights."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures:
    """The images of one file, in [0, 1], on the model's device.

    place: where what is made of them goes below --out. y: their labels, where `told` says what told them.
    """

    path: Path
    place: Path
    x: Float[Tensor, "n *shape"]
    y: Int[Tensor, " n"] | None = None
    told: str = ""

    @property
    def is_archive(self) -> bool:
        """Whether this is an .npz file, of many images, rather than an image file."""
        return self.place.suffix == ".npz"

    @property
    def names(self) -> list[str]:
        """What each image is called."""
        return [f"{self.path}[{k}]" for k in range(len(self.x))] if self.is_archive else [str(self.path)]


def read(paths: Sequence[Path], model: TakesImages, *, classes: Sequence[str] = (), resize: bool) -> list[Pictures]:
    """All images that `paths` name, checked against the model.

    Colour becomes grey, or grey RGB, as the model wants; another size is an error unless `resize` is set. Labels
    come from the `y` of an .npz, or for a folder from those folders in it that are called like one of `classes`.
    """
    found = []
    for path in paths:
        with atomic.file_errors(path):
            is_folder = path.is_dir()
        if is_folder:
            found += [_in_folder(image, path, model, classes, resize) for image in _images(path)]
        elif path.suffix == ".npz":
            found.append(_archive(path, model))
        else:
            found.append(Pictures(path=path, place=Path(f"{path.stem}.png"), x=_image(path, model, resize)))
    return found


def _images(folder: Path) -> list[Path]:
    with atomic.file_errors(folder):
        every = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    shown = [path for path in every if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    images = [path for path in shown if path.name != SHEET]
    if not images:
        raise InputError(f"{folder} holds no image; want files that end in {', '.join(SUFFIXES)}.")
    return images


def _in_folder(path: Path, folder: Path, model: TakesImages, classes: Sequence[str], resize: bool) -> Pictures:
    x = _image(path, model, resize)
    place = path.relative_to(folder).with_suffix(".png")
    if path.parent.name not in classes:
        return Pictures(path=path, place=place, x=x)
    label = torch.tensor([list(classes).index(path.parent.name)], device=x.device)
    return Pictures(path=path, place=place, x=x, y=label, told="its folder")


def _image(path: Path, model: TakesImages, resize: bool) -> Tensor:
    """One image file as [1, channels, height, width]."""
    from PIL import Image, ImageOps

    channels, height, width = model.input_shape
    with atomic.file_errors(path):
        content = path.read_bytes()
    try:
        with opened(content) as picture:
            image = ImageOps.exif_transpose(picture)
            image.load()
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from problem
    # Pillow's decoders meet a damaged file with many kinds of exception (OSError, SyntaxError, struct.error ...).
    except Exception as problem:
        raise FileError(f"{path}: not a whole image file; want PNG, JPEG, WebP or BMP, or an .npz file.") from problem
    if image.mode not in GREY_MODES + COLOUR_MODES:
        raise InputError(f"{path} has colour mode {image.mode}; want 8 bits a channel, grey or RGB. Save it so.")
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        if not resize:
            raise InputError(
                f"{path} is {image.width} x {image.height} pixels, but {model.name} takes {width} x {height}; "
                "add --resize to scale it."
            )
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.array(image).reshape(height, width, channels).transpose(2, 0, 1)
    return torch.from_numpy(pixels).float().div(255)[None].to(_device(model))


def _archive(path: Path, model: TakesImages) -> Pictures:
    """The x of an .npz, and its y if it has one; pickles in it are never opened."""
    with atomic.file_errors(path):
        content = path.read_bytes()
    try:
        held, arrays = read_arrays(io.BytesIO(content), ("x", "y"))
    # numpy and zipfile meet pickles and damage with many kinds of exception (ValueError, BadZipFile, TypeError ...).
    except Exception as problem:
        raise FileError(f"{path}: not a whole .npz of plain numbers; make one by numpy.savez(path, x=x).") from problem
    if "x" not in arrays:
        raise InputError(f"{path}: holds {', '.join(held) or 'nothing'}; want the images as 'x' (and labels as 'y').")
    try:
        x = _inputs(arrays["x"], model).to(_device(model))
        validate.inputs(x, model)
        y = _labels(arrays["y"], x, model) if "y" in arrays else None
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return Pictures(path=path, place=Path(path.name), x=x, y=y, told="the file's y")


def _inputs(x: npt.NDArray[Any], model: TakesImages) -> Tensor:
    """Bytes or floats, [n, h, w], [n, c, h, w] or [n, h, w, c], as float [n, c, h, w]."""
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise InputError(f"x is {x.dtype}, want uint8 (0 to 255) or floats in [0, 1].")
    images = torch.from_numpy(np.ascontiguousarray(x))
    images = images.float().div(255) if images.dtype == torch.uint8 else images.float()
    channels, height, width = model.input_shape
    if images.shape[1:] == (height, width) and channels == 1:
        return images[:, None]
    if images.shape[1:] == (height, width, channels):
        return images.permute(0, 3, 1, 2).contiguous()
    return images


def _labels(y: npt.NDArray[Any], x: Tensor, model: TakesImages) -> Tensor:
    if not np.issubdtype(y.dtype, np.integer):
        raise InputError(f"y is {y.dtype}, want whole numbers: one class an image.")
    labels = torch.from_numpy(y.astype(np.int64)).to(x.device)
    validate.labels(labels, x, getattr(model, "classes", None))  # a generative model has none
    return labels


def _device(model: TakesImages) -> torch.device:
    return next(model.parameters()).device
