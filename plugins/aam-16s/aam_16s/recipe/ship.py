"""Write a model as an encoder of this package: weights in half precision, small files, a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from aam.files.atomic import MANIFEST, partial_folder, put_folder, remove, write_manifest
from aam.files.tensors import read_tensors, write_tensors
from aam.predict.saved_model import REFERENCE, WEIGHTS, SavedModel, save_model

# Bytes of a file, as far as single arrays allow: some hosts of sources refuse files of 1 MB.
SHARD_LIMIT = 900_000


def ship_model(saved: SavedModel, folder: Path, texts: Mapping[str, str]) -> None:
    """Write `saved` to `folder`, and `texts` by file name (``card.md``); replace what is there."""
    with partial_folder(folder) as temporary:
        save_model(temporary / folder.name, saved)
        model = temporary / folder.name
        for name, text in texts.items():
            (model / name).write_text(text, encoding="utf-8")
        for name, half in ((WEIGHTS, True), (REFERENCE, False)):
            path = model / name
            if path.is_file():
                tensors = read_tensors(path)
                remove(path)
                write_shards({n: t.half() if half else t for n, t in tensors.items()}, path)
        remove(model / MANIFEST)
        write_manifest(model)
        put_folder(model, folder)


def write_shards(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to files of at most `SHARD_LIMIT` bytes: ``NAME-00001-of-0000N.SUFFIX``."""
    shards: list[dict[str, Tensor]] = []
    size = SHARD_LIMIT
    for name, tensor in tensors.items():
        if size + tensor.nbytes > SHARD_LIMIT:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    for number, shard in enumerate(shards, start=1):
        name = f"{path.stem}-{number:05d}-of-{len(shards):05d}{path.suffix}"
        write_tensors(shard, path.with_name(name))
