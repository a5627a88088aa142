"""The encoder 16s-v4: its vectors, and networks that start from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import aam
from aam.api.training import load_folds, supervise
from aam.cli import main
from aam.config import DataConfig, FineTuneConfig, TargetConfig, TrainConfig
from aam.data.loader import Collation, rarefied_batch
from aam.errors import InputError
from aam.options import RunConfig
from aam.predict.blend import columns_of
from aam.predict.estimator import Samples
from aam.predict.network import Network
from aam.predict.saved_model import load_encoder, load_model
from aam_16s.encoders import V4

GOLDEN = Path(__file__).parent / "golden" / "16s-v4.npz"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def frame(v4_tree, letters, samples_of) -> pd.DataFrame:
    return samples_of(letters(v4_tree.tokens[::300]))


@pytest.fixture(scope="module")
def model() -> aam.Model:
    return aam.load("16s-v4")


@pytest.fixture
def study(frame, tmp_path) -> Path:
    frame.T.to_csv(tmp_path / "table.tsv", sep="\t", index_label="#OTU ID")
    y = pd.DataFrame({"y": np.arange(len(frame)) + 0.5}, frame.index.rename("sample-id"))
    y.to_csv(tmp_path / "metadata.tsv", sep="\t")
    return tmp_path


def test_vectors_are_those_of_the_release_that_trained_it(model, frame):
    golden = np.load(GOLDEN)
    samples, asvs = model.embed(frame), model.embed(frame, asvs=True)
    np.testing.assert_allclose(samples, golden["samples"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(asvs.loc[frame.columns], golden["asvs"], rtol=0, atol=2e-5)


def test_samples_are_rarefied_as_asked_up_to_the_depth_of_the_encoder(model, frame, study, capsys):
    words = ["embed", "--model", "16s-v4", "--table", str(study / "table.tsv"), "--device", "cpu"]
    assert main([*words, "--output-dir", str(study / "usual")]) == 0
    said = capsys.readouterr().err
    assert "each rarefied to 1,000 reads, the depth of the model (--rarefy-depth changes" in said
    usual = pd.read_csv(study / "usual" / "samples.tsv", sep="\t", index_col=0)
    np.testing.assert_allclose(usual, model.embed(frame), atol=1e-4)
    assert not np.allclose(usual, model.embed(frame, rarefy_depth=500), atol=1e-2)
    with pytest.raises(InputError, match="--rarefy-depth is 2000, expected at most 1000"):
        model.embed(frame, rarefy_depth=2000)


def test_a_new_study_is_read_by_its_own_principal_components(study):
    encoder = load_model(V4.folder, CPU).require_network()
    weights = {}
    for frozen in (False, True):
        config = FineTuneConfig(
            data=DataConfig(table=study / "table.tsv", metadata=study / "metadata.tsv"),
            targets=TargetConfig(metadata_column=("y",), members=("deep",), freeze_base=frozen),
            # Training that changes nothing: what is seen is the start.
            train=TrainConfig(pretrained_encoder=Path("16s-v4"), epochs=1, lr=1e-12),
            runtime=RunConfig(output_dir=study / "run", device="cpu", threads=1),
        )
        folds = load_folds(config)
        split = folds.splits[0]
        learned, targets, covariates = supervise(folds, split.ids("train"))
        rows = learned.rows(split.ids("train")), learned.rows(split.ids("validation"))
        encoder_of_run = load_encoder(folds.config.train, "")
        estimator = Network(folds.config, targets, covariates, CPU, encoder_of_run)
        both = np.concatenate(rows)
        samples, is_validated = (
            Samples.of_study(learned, both),
            np.arange(len(both)) >= len(rows[0]),
        )
        network = estimator.fit(samples, columns_of(learned, both), validation=is_validated).network
        weights[frozen] = network.reference.weight
        if not frozen:
            batch = rarefied_batch(learned, rows[0], 0, Collation(distances=False))
            with torch.no_grad():
                read = network.reference(batch.reference)
    assert torch.equal(weights[True], encoder.reference.weight)
    assert not torch.equal(weights[False], encoder.reference.weight)
    # Principal components of the training samples: centred and not correlated.
    torch.testing.assert_close(read.mean(dim=0), torch.zeros(96), atol=1e-3, rtol=0)
    covariance = read.T.cov()
    torch.testing.assert_close(covariance, covariance.diagonal().diag(), atol=1e-2, rtol=0)


@pytest.mark.slow
def test_a_model_that_starts_from_it_keeps_its_reference(model, study):
    table = ["--table", str(study / "table.tsv"), "--device", "cpu", "--threads", "1"]
    words = ["train", *table, "--metadata", str(study / "metadata.tsv"), "--metadata-column", "y"]
    words += ["--members", "deep", "--freeze-base", "--epochs", "1", "--test-size", "0"]
    words += ["--pretrained-encoder", "16s-v4", "--output-dir", str(study / "run")]
    assert main(words) == 0
    tuned = aam.load(study / "run")
    assert tuned.models[0].reference.tokens.shape == (12553, 150)
    assert np.isfinite(tuned.predict(study / "table.tsv")["y"]).all()
    # A frozen base reads the samples as its encoder does.
    first, second = (loaded.embed(study / "table.tsv") for loaded in (tuned, model))
    pd.testing.assert_frame_equal(first, second)
