"""Settings of the network are compared as a third member of a finished run."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from aam.api.training import run_training
from aam.cli import COMMANDS, parse
from aam.evaluate.predictions import read_predictions
from benchmarks.config import NetworkConfig
from benchmarks.network import (
    as_third_member,
    compare_settings,
    in_rows,
    network_options,
    network_predictions,
)
from benchmarks.rivals import load_run

pytestmark = pytest.mark.slow

SETTING = "lr=1e-3 epochs=2 embedding-dim=16 attention-heads=2 attention-layers=1"


@pytest.fixture(scope="module")
def runs(simulate_study, quick_baselines, tmp_path_factory):
    """Finished runs of two members, and of these with the network."""
    study, folder = simulate_study(samples=40, depth=3000), tmp_path_factory.mktemp("runs")
    words = (
        f"--table {study}/table.biom --metadata {study}/metadata.tsv --group-column subject "
        "--metadata-column biome --cv 2 --rarefy-depth 300 --missing drop --device cpu"
    )
    network = " ".join(f"--{option}" for option in SETTING.split())
    for name, more in {"two": "", "three": f"--members presence forest deep {network}"}.items():
        given = shlex.split(f"{words} {more} --output-dir {folder / name}")
        run_training(parse("train", COMMANDS["train"].default(), given), report=True)
    return folder / "two", folder / "three"


def test_the_network_is_added_as_aam_train_adds_it(runs):
    two, three = runs
    _, predictions = load_run(two)
    network, joined_folds = network_predictions(network_options(two, SETTING), (), two)
    blended = as_third_member(predictions, in_rows(predictions, network))
    joins = np.isin(predictions.fold, joined_folds)
    blended = np.where(joins[:, None], blended, predictions.predicted)
    expected = in_rows(predictions, read_predictions(three / "predictions.tsv"))
    np.testing.assert_allclose(blended, expected, atol=2e-6)


def test_settings_are_compared_on_the_folds_asked_for(runs, tmp_path, capsys):
    output = tmp_path / "network.json"
    compare_settings(NetworkConfig((runs[0],), (SETTING,), ("1",), output))
    (row,) = json.loads(output.read_text())
    assert (row["task"], row["setting"], row["folds"]) == ("two", SETTING, ["1"])
    table = read_predictions(runs[0] / "predictions.tsv")
    folds = np.isin(table.texts("fold"), ["1"])
    assert row["alone"]["samples"] == row["third"]["samples"] == folds.sum() < len(folds)
    difference = row["third"]["aam"] - row["third"]["value"]
    assert row["third"]["difference"] == pytest.approx(difference)
    assert row["alone"]["aam"] == row["third"]["aam"]
    assert f"two: {SETTING}: " in capsys.readouterr().err
