"""Encoders of plugins: found by name, and models that read a reference of a plugin."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
import torch

from aam import encoders
from aam.cli import main
from aam.config import ModelConfig
from aam.data.loader import rarefied_batch
from aam.data.region import RegionProfile
from aam.data.table import write_biom
from aam.errors import InputError
from aam.model.aam import HeadConfig
from aam.predict.saved_model import SavedModel, load_model, load_models, save_model
from tests.predict.samples import saved_model

CPU = torch.device("cpu")
WIDTH = 7


class Reference:
    """A reference as a plugin would have it: numbers of a sample are those of its ASVs, summed."""

    encoder, width = "toy", WIDTH

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def sample_input(self, tokens):
        rows = torch.arange(len(tokens) * WIDTH, dtype=torch.float32).view(-1, WIDTH).sin()
        return lambda asvs: torch.stack([self.scale * rows[columns].sum(0) for columns in asvs])

    def to_arrays(self):
        return {"scale": np.array([self.scale], np.float32)}


class Toy:
    """What the entry point of a plugin names."""

    folder = Path("unset")

    @staticmethod
    def read_reference(arrays):
        return Reference(float(arrays["scale"][0]))


@pytest.fixture
def installed(monkeypatch):
    """Installs the encoders of entry points, and no others."""

    def install(**values: str) -> None:
        found = EntryPoints(
            EntryPoint(name, at, encoders.ENTRY_POINTS) for name, at in values.items()
        )
        monkeypatch.setattr(encoders, "entry_points", lambda group: found)

    return install


HEADS = HeadConfig(counts=True)


def save_encoder(folder: Path, study, network, **more: object) -> SavedModel:
    sizes = ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30)
    profile = RegionProfile.fit(study.table.sequences)
    saved = saved_model(network, HEADS, model=sizes, profile=profile, **more)
    save_model(folder, saved)
    return saved


@pytest.fixture
def toy(tmp_path, study, model_of, installed, monkeypatch) -> SavedModel:
    """A model that reads a reference, saved as the installed encoder ``toy``."""
    installed(toy="tests.toy:Toy")
    monkeypatch.setattr(EntryPoint, "load", lambda entry: Toy)
    monkeypatch.setattr(Toy, "folder", tmp_path / "toy")
    network = model_of(HEADS, reference_width=WIDTH)
    return save_encoder(tmp_path / "toy", study, network, reference=Reference(0.5))


def test_an_installed_encoder_is_read_by_name_with_its_reference(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "..")
    assert list(encoders.installed()) == ["toy"]
    (loaded,) = load_models([Path("toy")], CPU)
    assert loaded.reference.scale == 0.5
    for name, value in toy.network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], value), name
    # A folder of that name that holds a model is that model.
    assert encoders.model_folder(Path("toy")) == tmp_path / "toy"
    monkeypatch.chdir(tmp_path)
    assert encoders.model_folder(Path("toy")) == Path("toy")


def test_a_network_reads_the_numbers_on_a_reference(toy, study):
    with pytest.raises(ValueError, match="not placed on the reference of the model"):
        toy.network(rarefied_batch(study, np.arange(9), 0))
    batch = rarefied_batch(study.placed_on(toy.reference), np.arange(9), 0)
    network, without = toy.network, replace(batch, reference=torch.zeros(9, WIDTH))
    added = network(batch).samples - network(without).samples
    weight = network.reference.weight
    torch.testing.assert_close(added, batch.reference @ weight.T, atol=1e-5, rtol=1e-4)
    # Principal components of a batch: centred, not correlated, of standard deviation 1 in all.
    network.standardize_reference(batch)
    read = network.reference(batch.reference).detach()
    torch.testing.assert_close(read.mean(dim=0), torch.zeros(16), atol=1e-4, rtol=0)
    covariance = read.T.cov()
    torch.testing.assert_close(covariance, covariance.diagonal().diag(), atol=1e-3, rtol=0)
    assert float(covariance.diagonal().sum() / 16) == pytest.approx(1, abs=1e-3)


def test_without_the_plugin_it_is_said_what_to_install(toy, installed, tmp_path, refused):
    installed()
    table = tmp_path / "table.tsv"
    table.write_text("x\n")
    words = ["embed", "--table", str(table), "--output-dir", str(tmp_path / "out"), "--model"]
    said = refused(main, [*words, "16s-v4"])
    expected = "16s-v4: no such file or folder, and no installed encoder (installed: none; 16s-v4 "
    assert f"{expected}is part of aam-16s: pip install aam-16s" in said
    # A model that has learned with a reference needs the plugin too.
    with pytest.raises(InputError, match="toy: no such file or folder, and no installed encoder"):
        load_model(tmp_path / "toy", CPU)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "export --model toy --output out",
            "it places ASVs on a reference, which cannot be export",
        ),
        ("explain --model toy --table x.tsv --output-dir out", "--table: x.tsv: no such file"),
        ("evaluate --model toy --table x.tsv --metadata x.tsv --output-dir out", "x.tsv: no such"),
    ],
)
def test_each_command_that_takes_a_model_takes_its_name(toy, command, message, refused):
    said = refused(main, command.split())
    assert message in said
    assert "--model: toy" not in said


def test_a_plugin_that_cannot_be_imported_is_named(installed):
    installed(broken="no_such_module:Encoder")
    with pytest.raises(InputError, match="broken: no_such_module:Encoder cannot be imported with"):
        encoders.find_encoder("broken")


def test_distances_need_a_reference(study, model_of, tmp_path, refused):
    save_encoder(tmp_path / "model", study, model_of(HEADS))
    write_biom(study.table, tmp_path / "table.biom")
    words = f"embed --model {tmp_path}/model --table {tmp_path}/table.biom --distances unifrac "
    said = refused(main, [*words.split(), "--device", "cpu", "--output-dir", f"{tmp_path}/out"])
    assert "--distances: the model has no reference tree; pass --model 16s-v4" in said
