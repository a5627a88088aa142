"""Tables that a saved model reads: what is advised about them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import biom
import numpy as np

from aam.api.apply import _counted
from aam.cli import main
from aam.data.study import Selection
from tests.data.test_checks import PRIMERS, written


def with_primers(study: Path) -> Path:
    """The study with the primer 515F before each ASV."""
    table = biom.load_table(str(study / "table.biom"))
    rng = np.random.default_rng(0)
    names = {name: written(PRIMERS["515F"], rng) + name for name in table.ids("observation")}
    table.update_ids(names, axis="observation")
    with biom.util.biom_open(str(study / "table.biom"), "w") as file:
        table.to_hdf5(file, "test")
    return study


def test_primers_are_no_fault_where_training_had_them_too(
    simulate_study, tmp_path, capsys, refused
):
    study = with_primers(simulate_study(samples=40, asvs=60))
    words = f"train --table {study}/table.biom --metadata {study}/metadata.tsv --rarefy-depth 300 "
    words += f"--metadata-column ph --members presence --test-size 0.3 --output-dir {tmp_path}/run"
    assert main(words.split()) == 0
    assert "still contain a primer" in capsys.readouterr().err
    words = f"predict --table {study}/table.biom --model {tmp_path}/run/model --output "
    assert main([*words.split(), str(tmp_path / "p.tsv")]) == 0
    assert "still contain a primer" not in capsys.readouterr().err
    message = refused(main, [*words.split(), str(tmp_path / "q.tsv"), "--trim-primers"])
    assert "--trim-primers: the model was trained on reads with primers" in message


def test_samples_without_a_prediction_are_counted_by_their_reason(study):
    ids = study.table.sample_ids
    every, aligned = (*ids, "low", "a", "b"), (*ids, "low")
    study = dataclasses.replace(study, selection=Selection(every, aligned, {"low": 3}))
    assert _counted(study) == (
        "12 samples, 9 of them predicted, 1 below the depth, 2 without metadata, which the model "
        "reads"
    )
