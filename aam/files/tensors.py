"""Tensors in safetensors files, one or several shards, and what keeps those of a stranger from
filling the memory.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aam.errors import InputError
from aam.typing import Array


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to a safetensors file; a full disk raises `OSError`, as for all other files."""
    try:
        # Clones: safetensors refuses tensors that share memory.
        copies = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
        safetensors.torch.save_file(copies, path)
    except safetensors.SafetensorError as error:
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise OSError(f"{path}: {error}") from error
    # safetensors lets only the owner read; all who may read the folder may read the file.
    path.chmod(path.parent.stat().st_mode & 0o666)


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


class AllocationLimit(TorchFunctionMode):
    """Let what runs inside allocate at most `limit` numbers in new tensors, and refuse before
    memory is taken.

    For a module whose sizes a file from a stranger gives: it cannot need more numbers than the
    weights next to it.
    """

    FUNCTIONS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        """Count the numbers that `function` allocates, and run it; torch calls this in place of its
        functions.
        """
        if function in self.FUNCTIONS:
            size = arguments[0] if arguments else (options or {}).get("size", ())
            self.limit -= math.prod(arguments if isinstance(size, int) else size)
            if self.limit < 0:
                raise ValueError("its sizes need more numbers than its weights hold")
        return function(*arguments, **(options or {}))
