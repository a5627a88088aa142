"""`aam models`, and the names of shipped encoders where a model folder is asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import aam.encoders as shipped
from aam.cli.main import main
from aam.config import ModelConfig
from aam.data.placement import ReferenceTree
from aam.data.region import RegionProfile
from aam.data.targets import Targets
from aam.files.atomic import MANIFEST
from aam.model.heads import HeadConfig
from aam.predict.saved_model import SavedModel, load_model, load_models, save_model

CPU = torch.device("cpu")
SIZES = ModelConfig(embedding_dim=16, attention_heads=2, attention_layers=1, max_bp=60)


@pytest.fixture
def encoders(tmp_path, study_of, tiny, model_of, monkeypatch) -> Path:
    """A folder with one shipped encoder, called tiny."""
    study = study_of(**tiny())
    heads = HeadConfig("unifrac", counts=True)
    sizes = {field.name: getattr(SIZES, field.name) for field in dataclasses.fields(SIZES)}
    profile = RegionProfile.fit(study.table.sequences)
    notes = {"seen_samples": ["s1"], "labelled_samples": []}
    reference = ReferenceTree(
        np.array([2, 2, -1], np.int32), np.array([0.1, 0.2, 0], np.float32), study.tokens[:2, :12].numpy()
    )
    network = model_of(heads, reference=reference, **sizes)
    saved = SavedModel(network, study.config, SIZES, heads, 500, 0, Targets(()), profile, notes)
    folder = tmp_path / "encoders"
    folder.mkdir()
    monkeypatch.setattr("aam.predict.saved_model.SHARD_LIMIT", 50_000)
    save_model(folder / "tiny", saved, card="# A tiny encoder\n\nLimits: all.\n")
    monkeypatch.setattr(shipped, "ENCODERS", folder)
    return folder


def test_half_precision_in_shards_is_read_as_single(encoders):
    saved = load_model(encoders / "tiny", CPU)
    assert {parameter.dtype for parameter in saved.network.parameters()} == {torch.float32}
    shards = sorted(encoders.glob("tiny/weights*"))
    number = len(shards)
    assert number > 1
    assert [path.name for path in shards] == [
        f"weights-{n:05d}-of-{number:05d}.safetensors" for n in range(1, number + 1)
    ]
    size = sum(path.stat().st_size for path in shards)
    assert size < 2.2 * sum(tensor.numel() for tensor in saved.network.state_dict().values())
    (named,) = load_models([Path("tiny")], CPU)
    assert torch.equal(named.network.branches.readout.weight, saved.network.branches.readout.weight)
    assert named.network.reference.tokens.shape == (2, 12)


def test_models_lists_and_shows_cards(encoders, capsys):
    assert main(["models"]) == 0
    assert capsys.readouterr().out.startswith("tiny  ")
    assert main(["models", "tiny"]) == 0
    assert "Limits: all." in capsys.readouterr().out
    assert main(["models", "huge"]) == 2
    assert "huge: no encoder that comes with aam, expected one of 'tiny'" in capsys.readouterr().err


def test_a_name_stands_for_its_folder(encoders, tmp_path, capsys):
    study = tmp_path / "study"
    assert main(f"simulate --output-dir {study} --samples 40 --asvs 60 --length 50 --depth 4000".split()) == 0
    table = ["--table", str(study / "table.biom"), "--device", "cpu"]
    assert main(["embed", "--model", "tiny", *table, "--output-dir", str(tmp_path / "vectors")]) == 0
    assert len((tmp_path / "vectors" / "samples.tsv").read_text().splitlines()) > 35
    words = ["--metadata", str(study / "metadata.tsv"), "--metadata-column", "ph", "--freeze-base", "--epochs", "1"]
    encoder = ["--pretrained-encoder", "tiny", "--output-dir", str(tmp_path / "tune")]
    capsys.readouterr()
    assert main(["train", *table, *words, *encoder]) == 0
    assert "--pretrained-encoder: the ASVs have another length" in capsys.readouterr().err
    assert main(["train", *table, *words, "--pretrained-encoder", "huge", "--output-dir", str(tmp_path / "no")]) == 2
    assert "huge: no such file or folder, and no encoder that comes with aam ('tiny')" in capsys.readouterr().err


def test_what_is_shipped_is_whole_and_small():
    assert "16s-v4" in shipped.shipped_encoders()
    for name, folder in shipped.shipped_encoders().items():
        saved = load_model(folder, CPU)
        assert saved.notes["seen_samples"], name
        learned = [parameter for parameter in saved.network.distance.parameters() if parameter.any()]
        assert not learned, "distances are those of presence on the reference tree alone"
        assert (folder / MANIFEST).is_file()
        assert (folder / shipped.CARD).read_text(encoding="utf-8").startswith("# ")
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 6_000_000
