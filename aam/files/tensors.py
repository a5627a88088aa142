"""Tensors written to safetensors files and read from them, in one file or in shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor

SHARD = "{}-{:05d}-of-{:05d}{}"


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to a safetensors file; a full disk raises `OSError`, as for all other files."""
    try:
        # Clones: safetensors refuses tensors that share memory.
        safetensors.torch.save_file({n: t.detach().cpu().clone().contiguous() for n, t in tensors.items()}, path)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    # safetensors lets only the owner read; all who may read the folder may read the file.
    path.chmod(path.parent.stat().st_mode & 0o666)


def write_shards(tensors: Mapping[str, Tensor], path: Path, limit: int) -> None:
    """Write tensors to files of at most `limit` bytes, as far as single tensors allow: ``NAME-00001-of-0000N``."""
    shards: list[dict[str, Tensor]] = []
    size = limit
    for name, tensor in tensors.items():
        if size + tensor.nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    for number, shard in enumerate(shards, start=1):
        write_tensors(shard, path.with_name(SHARD.format(path.stem, number, len(shards), path.suffix)))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, or of all its shards."""
    files = [path] if path.is_file() else sorted(path.parent.glob(f"{path.stem}-*-of-*{path.suffix}"))
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= safetensors.torch.load_file(file)
    return tensors
