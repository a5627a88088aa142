"""Tensors in files and in shards; numbers that are not finite and sizes that no file holds are
refused.
"""

from __future__ import annotations

import pytest
import torch

from aam.files.tensors import read_tensors, write_tensors

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.ones(5, dtype=torch.int64),
    "c": torch.tensor(2.0),
}


@pytest.mark.parametrize("shards", [False, True])
def test_tensors_come_back_from_one_file_or_from_shards(tmp_path, shards):
    path = tmp_path / "w.safetensors"
    parts = [{name: value} for name, value in TENSORS.items()] if shards else [TENSORS]
    for number, part in enumerate(parts, start=1):
        name = f"w-{number:05d}-of-00003.safetensors" if shards else path.name
        write_tensors(part, tmp_path / name)
    assert len(list(tmp_path.iterdir())) == (3 if shards else 1)
    read = read_tensors(path)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], value) for name, value in TENSORS.items())


def test_what_the_system_refuses_has_its_number_and_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere/w\.safetensors"):
        write_tensors(TENSORS, tmp_path / "nowhere" / "w.safetensors")
