"""Tensors in safetensors files, one or several shards, and what arrays of a file must be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
from torch import Tensor

from aam.errors import InputError, shown
from aam.typing import Array


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to a safetensors file."""
    # Clones: safetensors refuses tensors that share memory.
    copies = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    # Not by its own writer, which lets only the owner read, and has its own error of a full disk.
    path.write_bytes(safetensors.torch.save(copies))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, or of all its shards.

    Raises
    ------
    InputError
        A tensor holds a number that is not finite.
    """
    tensors, shards = dict[str, Tensor](), f"{path.stem}-*-of-*{path.suffix}"
    for file in [path] if path.is_file() else sorted(path.parent.glob(shards)):
        tensors |= safetensors.torch.load_file(file)
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise InputError(f"{path}: {name} holds numbers that are not finite")
    return tensors


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of a safetensors file, as `read_tensors` does; empty without
    a file.
    """
    return {name: tensor.numpy() for name, tensor in read_tensors(path).items()}


class ArraySpec(NamedTuple):
    """What an array of a file must be: its type, and its dimensions as numbers or names of sizes.

    Its values lie between two limits, and do not descend if they are `sorted`.
    """

    kind: str
    shape: tuple[int | str, ...]
    low: float = -math.inf
    high: float = math.inf
    sorted: bool = False


def check_arrays(arrays: Mapping[str, Any], specs: Mapping[str, ArraySpec], **sizes: int) -> None:
    """Raise `ValueError` for arrays that are missing, unknown or not as they are declared.

    A size that is not known is that of the first array that has it.
    """
    if arrays.keys() != specs.keys():
        raise ValueError(f"its arrays are {shown(sorted(arrays), 20)}, expected {shown(specs, 20)}")
    for name, (kind, shape, low, high, is_sorted) in specs.items():
        array = arrays[name]
        if array.ndim == len(shape):
            for dimension, size in zip(shape, array.shape, strict=True):
                sizes.setdefault(str(dimension), size)
        expected = [size if isinstance(size, int) else sizes.get(size, size) for size in shape]
        if list(array.shape) != expected:
            raise ValueError(f"{name} has shape {list(array.shape)}, expected {expected}")
        if array.dtype != np.dtype(kind):
            raise ValueError(f"{name} is {array.dtype}, expected {np.dtype(kind)}")
        if array.size and not (array.min() >= low and array.max() <= high):
            values = f"{array.min():g} to {array.max():g}"
            raise ValueError(f"{name} is {values}, expected {low:g} to {high:g}")
        if is_sorted and (array[:-1] > array[1:]).any():
            raise ValueError(f"{name} is not in ascending order")
