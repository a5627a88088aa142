"""Tables that a saved model reads: what is advised about them."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from pathlib import Path
from typing import Any

import biom
import numpy as np
import pytest

import aam
from aam.api import apply, evaluation, explanation
from aam.api.apply import _counted
from aam.cli import main
from aam.data.inputs import read_inputs
from aam.data.primers import PRIMERS
from tests.data.studies import samples_in
from tests.data.test_region import written
from tests.refusals import refusal


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


@pytest.fixture(scope="module")
def with_covariate(simulate_study, tmp_path_factory) -> tuple[Path, Path]:
    """A study, and a model of it that reads the covariate `null`."""
    study, run = simulate_study(samples=40, asvs=60), tmp_path_factory.mktemp("covariate") / "run"
    words = f"train --table {study}/table.biom --metadata {study}/metadata.tsv --rarefy-depth 300 "
    words += "--metadata-column ph --numeric-columns null --members presence --test-size 0.3 "
    assert main([*words.split(), "--output-dir", str(run)]) == 0
    return study, run / "model"


def test_a_bad_table_and_missing_columns_are_said_at_once(with_covariate, tmp_path, refused):
    study, model = with_covariate
    bad, metadata = tmp_path / "bad.tsv", tmp_path / "metadata.tsv"
    bad.write_text("nothing\n")
    text = (study / "metadata.tsv").read_text()
    metadata.write_text(text.replace("\tnull", "\tother", 1))
    files, out = f"--table {bad} --metadata {metadata}", tmp_path / "out"
    for words, column in (
        (f"predict {files} --model {model} --output {out}.tsv", "null"),
        (f"evaluate {files} --model {model} --output-dir {out}", "null"),
        (f"audit {bad} {metadata} --metadata-column nope", "nope"),
    ):
        message = refused(main, words.split())
        assert "2 problems" in message
        assert f"metadata.tsv: no column {column!r}" in message
    # From Python, and without metadata.
    read = aam.load(model)
    assert "--metadata: not given" in refusal(read.predict, study / "table.biom")
    for judge in (aam.audit, aam.learning_curve):
        message = refusal(judge, study / "table.biom", None, "ph")
        assert message.startswith("metadata is NoneType, expected a DataFrame")


def test_the_whole_table_is_not_kept_while_samples_are_predicted(
    with_covariate, tmp_path, monkeypatch
):
    (study, model), tables, kept = with_covariate, [], []
    monkeypatch.chdir(tmp_path)

    def read(*arguments: Any, **options: Any) -> Any:
        inputs = read_inputs(*arguments, **options)
        tables.append(weakref.ref(inputs.tables[0]))
        return inputs

    def watched(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            gc.collect()
            kept.append(tables[-1]() is not None)
            return function(*arguments, **options)

        return call

    for module, name in ((apply, "predict_samples"), (evaluation, "predict_samples")):
        monkeypatch.setattr(module, name, watched(getattr(module, name)))
    monkeypatch.setattr(explanation, "explain_samples", watched(explanation.explain_samples))
    for module in (apply, explanation):
        monkeypatch.setattr(module, "read_inputs", read)
    files = f"--table {study}/table.biom --metadata {study}/metadata.tsv --model {model}"
    for command in ("predict --output p.tsv", "evaluate --output-dir e", "explain --output-dir x"):
        assert main(f"{command} {files}".split()) == 0
    assert kept == [False, False, False]


def test_samples_without_a_prediction_are_counted_by_their_reason(study):
    ids = study.table.sample_ids
    samples = samples_in(kept=ids, few_reads=["low"], no_metadata=["a", "b"])
    study = dataclasses.replace(study, samples=samples)
    expected = "12 samples, 9 of them predicted; no metadata: 2; few reads: 1"
    assert _counted(study) == expected
