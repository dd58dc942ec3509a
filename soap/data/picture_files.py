"""Read image files, folders and .npz files as model inputs, and write changed images: PNG for images, .npz for .npz."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from soap import validate
from soap._files import atomic
from soap.data.npz import read_npz
from soap.data.pictures import SUFFIXES, encode_png, is_picture, read_picture, round_to_8bit
from soap.errors import InputError
from soap.shapes import Float, Int, Tensor

COMPARISON_NAME = "side-by-side.png"
"""The image that `soap attack` and `soap purify` draw beside their outputs; skipped when a folder is read."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PictureFile:
    """The images of one file, in [0, 1], on the model's device.

    output: the path of the changed file, relative to the output folder. y: the labels, if known;
    `label_source`: their origin.
    """

    path: Path
    output: Path
    x: Float[Tensor, "n *shape"]
    y: Int[Tensor, " n"] | None = None
    label_source: str = ""

    @property
    def is_npz(self) -> bool:
        """Whether this is an .npz file with many images rather than an image file."""
        return self.output.suffix == ".npz"

    @property
    def names(self) -> list[str]:
        """One name for each image."""
        return [f"{self.path}[{k}]" for k in range(len(self.x))] if self.is_npz else [str(self.path)]


def read_files(
    paths: Sequence[Path], model: Any, *, classes: Sequence[str] = (), resize: bool = False, invert: bool = False
) -> list[PictureFile]:
    """All images in files and folders, checked against the `input_shape` of a classifier or a generative model.

    Colour is converted to grey or RGB as the model needs; another size is an error unless `resize` is set.
    `invert` swaps dark and light. Labels come from the `y` of an .npz file, and in a folder from subfolders that are
    named like one of `classes`.
    """
    device = next(model.parameters()).device
    found: list[PictureFile] = []

    def add_image(path: Path, output: Path, **label: Any) -> None:
        x = read_picture(path, model.input_shape, resize=resize, invert=invert)[None].to(device)
        found.append(PictureFile(path=path, output=output, x=x, **label))

    for path in paths:
        with atomic.file_errors(path):
            is_folder = path.is_dir()
        if is_folder:
            for image in _images_in(path):
                output, name = image.relative_to(path).with_suffix(".png"), image.parent.name
                y = torch.tensor([list(classes).index(name)], device=device) if name in classes else None
                add_image(image, output, y=y, label_source="its folder")
        elif path.suffix == ".npz":
            found.append(_read_npz(path, model, device, invert))
        else:
            add_image(path, Path(f"{path.stem}.png"))
    return found


def _images_in(folder: Path) -> list[Path]:
    with atomic.file_errors(folder):
        every = sorted(path for path in folder.rglob("*") if is_picture(path))
    visible = [path for path in every if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    images = [path for path in visible if path.name != COMPARISON_NAME]
    if not images:
        raise InputError(f"{folder} contains no image; expected files that end in {', '.join(SUFFIXES)}.")
    return images


def _read_npz(path: Path, model: Any, device: torch.device, invert: bool) -> PictureFile:
    names, arrays = read_npz(path, ("x", "y"))
    if "x" not in arrays:
        raise InputError(
            f"{path} contains {', '.join(names) or 'no array'}; expected the images as 'x' (and labels as 'y')."
        )
    y = None
    try:
        x = _inputs(arrays["x"], model.input_shape).to(device)
        validate.inputs(x, model)
        if "y" in arrays:
            if not np.issubdtype(arrays["y"].dtype, np.integer):
                raise InputError(f"y is {arrays['y'].dtype}, expected integers: one class for each image.")
            y = torch.from_numpy(arrays["y"].astype(np.int64)).to(device)
            validate.labels(y, x, getattr(model, "classes", None))  # a generative model has no classes
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return PictureFile(path=path, output=Path(path.name), x=1 - x if invert else x, y=y, label_source="the file's y")


def _inputs(x: npt.NDArray[Any], shape: Sequence[int]) -> Tensor:
    """Bytes or floats with shape [n, h, w], [n, c, h, w] or [n, h, w, c], as float [n, c, h, w]."""
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise InputError(f"x is {x.dtype}, expected uint8 (0 to 255) or floats in [0, 1].")
    images = torch.from_numpy(np.ascontiguousarray(x))
    images = images.float().div(255) if images.dtype == torch.uint8 else images.float()
    channels, height, width = shape
    if images.shape[1:] == (height, width) and channels == 1:
        return images[:, None]
    return images.permute(0, 3, 1, 2).contiguous() if images.shape[1:] == (height, width, channels) else images


def check_outputs(files: Sequence[PictureFile], out: Path, *, force: bool) -> None:
    """Raise unless each output has its own path, overwrites no input, and overwrites other files only with `force`."""
    atomic.check_writable(out)
    inputs = {file.path.resolve() for file in files}
    origins = {out / COMPARISON_NAME: "the side-by-side image"}
    for file in files:
        target = out / file.output
        if target in origins:
            raise InputError(f"{file.path} and {origins[target]} would both become {target}; use separate commands.")
        origins[target] = str(file.path)
    for target in origins:
        if target.resolve() in inputs:
            raise InputError(f"{target} is an input file, which is never overwritten; choose another --out.")
        if target.exists() and not force:
            raise InputError(f"{target} already exists; choose another --out, or overwrite it with --force.")


def as_written(
    files: Sequence[PictureFile], changed: Float[Tensor, "n *shape"], *, away: bool = False
) -> Float[Tensor, "n *shape"]:
    """`changed` as it is read back from the files: rounded to 8 bits for images, unchanged for .npz files.

    away: see `round_to_8bit`.
    """
    parts = zip(files, split_by_file(files, changed), strict=True)
    return torch.cat([part if file.is_npz else round_to_8bit(part, file.x, away=away) for file, part in parts])


def write_files(
    files: Sequence[PictureFile], written: Tensor, out: Path, *, labels: Tensor | None = None
) -> list[Path]:
    """Write the changed images below `out`; an .npz file also gets `labels`, or its own labels."""
    targets = [out / file.output for file in files]
    all_labels = [file.y for file in files] if labels is None else split_by_file(files, labels)
    for target, file, x, y in zip(targets, files, split_by_file(files, written), all_labels, strict=True):
        with atomic.replace_file(target) as temporary:
            if file.is_npz:
                arrays = {"x": x.cpu().numpy()} | ({} if y is None else {"y": y.cpu().numpy()})
                with temporary.open("wb") as stream:
                    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]  # numpy's stub expects a bool
            else:
                temporary.write_bytes(encode_png(x[0]))
    return targets


def split_by_file(files: Sequence[PictureFile], values: Tensor) -> list[Tensor]:
    """The values of all images, split file by file."""
    return list(torch.split(values, [len(file.x) for file in files]))
