"""Changed pictures out: where they go, and how they are written: PNG for image files, .npz for .npz."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from soap._files import atomic
from soap.cli.pictures import SHEET, Pictures
from soap.errors import FileError, InputError
from soap.shapes import Float, Tensor

ROUNDING = 1e-3
"""A walk of whole grey levels misses them in float32 by less than this part of one."""


def check_folder(folder: Path) -> None:
    """Whether files can be put into `folder`, found out before long work; nothing is written."""
    with atomic.file_errors(folder):
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise FileError(f"{there} is a file, want a folder; choose another path.")
    if not os.access(there, os.W_OK):
        raise FileError(f"{there}: no permission; choose a folder you may write to.")


def check_places(pictures: Sequence[Pictures], out: Path, *, force: bool) -> None:
    """Every output has a place of its own that can be written, is no input, and is free unless `force` is set."""
    check_folder(out)
    inputs = {picture.path.resolve() for picture in pictures}
    makers = {out / SHEET: "the side-by-side picture"}
    for picture in pictures:
        target = out / picture.place
        if target in makers:
            raise InputError(f"{picture.path} and {makers[target]} would both become {target}; handle them apart.")
        makers[target] = str(picture.path)
    for target in makers:
        if target.resolve() in inputs:
            raise InputError(f"{target} is an input file, which is never overwritten; choose another --out.")
        if target.exists() and not force:
            raise InputError(f"{target} is there already; choose another --out, or add --force to overwrite it.")


def as_written(
    pictures: Sequence[Pictures], changed: Float[Tensor, "n *shape"], *, outwards: bool = False
) -> Float[Tensor, "n *shape"]:
    """What a reader of the files will find: images are kept in 256 levels, .npz files as they are.

    Each value is rounded towards the input's, so that a perturbation does not leave its ball. outwards: away from it,
    where it moved by a quarter of a level and more, so that a perturbation that is as small as can be is not undone.
    """
    parts = []
    for picture, part in zip(pictures, split(pictures, changed), strict=True):
        if not picture.is_archive:
            levels = (picture.x * 255).round()
            moved = part * 255 - levels
            inwards = (moved + ROUNDING * moved.sign()).trunc()
            away = torch.where(moved.abs() >= 0.25, moved.sign() * (moved.abs() - ROUNDING).ceil(), 0)
            part = (levels + (away if outwards else inwards)) / 255
        parts.append(part)
    return torch.cat(parts)


def write(pictures: Sequence[Pictures], written: Tensor, out: Path, *, labels: Tensor | None = None) -> list[Path]:
    """Write every picture's successor below `out`; an .npz gets the labels too, `labels` or its own."""
    targets = [out / picture.place for picture in pictures]
    all_labels = [picture.y for picture in pictures] if labels is None else split(pictures, labels)
    for target, picture, x, y in zip(targets, pictures, split(pictures, written), all_labels, strict=True):
        if picture.is_archive:
            arrays = {"x": x.cpu().numpy()} | ({} if y is None else {"y": y.cpu().numpy()})
            with atomic.replace_file(target) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # numpy's stub wants a bool somewhere
        else:
            from PIL import Image

            with atomic.replace_file(target) as temporary:
                Image.fromarray(pixels(x[0])).save(temporary, format="PNG")
    return targets


def split(pictures: Sequence[Pictures], values: Tensor) -> list[Tensor]:
    """Values of all images, file by file."""
    return list(torch.split(values, [len(picture.x) for picture in pictures]))


def pixels(x: Float[Tensor, "c h w"]) -> npt.NDArray[np.uint8]:
    """One image as Pillow takes it: [h, w] or [h, w, 3]."""
    array = (x * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    return array[:, :, 0] if array.shape[2] == 1 else array
