"""Copy trained weights to the package, optionally in half precision:

    python tools/bundle.py runs/NAME/last.safetensors soap/zoo/NAME.safetensors --half

Half precision rounds every weight to 11 bits instead of 24, so results must be measured again with the new file.
Loading converts it to single precision.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from soap._files import tensor_files
from soap.errors import InputError
from soap.recipes import generative
from soap.shapes import Tensor


def bundle(source: Path, target: Path, *, half: bool = False, recipe: Path | None = None) -> None:
    """Copy a safetensors file; with `half`, round its floating-point tensors to 16 bits.

    recipe: for a generative model, a recipe to store instead. Only its [purifier] may differ, which training does not
    use.
    """
    tensors, metadata = tensor_files.load_tensors(source)
    if half:
        tensors = {name: _rounded(tensor) for name, tensor in tensors.items()}
        metadata = {**metadata, "stored": "half precision"}
    if recipe is not None:
        stored, other = generative.parse(metadata["recipe"], str(source)), generative.read(recipe)
        if replace(stored, text=other.text, purifier=other.purifier) != other:
            raise InputError(
                f"{recipe} differs from the recipe inside {source} in more than [purifier]; change only that section."
            )
        metadata = {**metadata, "recipe": other.text}
    tensor_files.save_tensors(target, tensors, metadata)


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float16) if tensor.is_floating_point() else tensor


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Copy trained weights to the package.")
    parser.add_argument("source", type=Path, help="a .safetensors file that `soap train` wrote")
    parser.add_argument("target", type=Path, help="the .safetensors file to write")
    parser.add_argument("--half", action="store_true", help="store in half precision: half the size, rounded weights")
    parser.add_argument("--recipe", type=Path, help="a .toml file to store inside; only its [purifier] may differ")
    given = parser.parse_args()
    bundle(given.source, given.target, half=given.half, recipe=given.recipe)
