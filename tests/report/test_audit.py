"""`aam audit`: planted leaks are found, nothing is found without one, and odd columns are said."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import aam
from aam.api.training import load_folds
from aam.config import FineTuneConfig
from aam.data.memory import metadata_from, table_from
from aam.data.study import Inputs
from aam.errors import InputError
from aam.options import IN_MEMORY, configured
from aam.predict.columns import make_column
from aam.predict.held_out import HeldOut
from aam.predict.leaks import predicted_by
from aam.predict.out_of_fold import Fold
from aam.report.training import TrainingReport

SAMPLES, FEATURES = 160, 60


def study(seed, columns=8):
    """Counts of samples and metadata columns that have nothing to do with each other."""
    rng = np.random.default_rng(seed)
    ids = [f"s{row}" for row in range(SAMPLES)]
    shares = rng.dirichlet(np.full(FEATURES, 0.3), SAMPLES)
    depths = rng.integers(600, 3000, SAMPLES)
    counts = np.array([rng.multinomial(n, p) for n, p in zip(depths, shares, strict=True)])
    table = pd.DataFrame(counts, ids, [f"OTU{column}" for column in range(FEATURES)])
    metadata = pd.DataFrame(index=ids)
    metadata["status"] = np.where(np.arange(SAMPLES) % 2, "case", "control")
    metadata["age"] = rng.normal(40, 10, SAMPLES)
    for number in range(columns):
        levels = rng.integers(2, 12)
        metadata[f"noise {number}"] = (
            rng.normal(size=SAMPLES) if number % 2 else rng.integers(0, levels, SAMPLES).astype(str)
        )
    return table, metadata, rng


def dangers(frame):
    return dict(zip(frame["column"], frame["danger"], strict=True))


def audit(table, metadata, target="status", **options):
    return aam.audit(table, metadata, target, rarefy_depth=500, **options)


def test_a_number_tells_the_target_by_a_fiftieth_of_the_training_samples():
    numbers = np.repeat([0.0, 1.0], [975, 25])
    folds = [Fold(*rows) for rows in np.arange(2000).reshape(2, 1000)[[[0, 1], [1, 0]]]]
    column = make_column("days", np.tile(numbers, 2), "date", np.tile(numbers, 2))
    target = column.numbers[:, None] * 3
    np.testing.assert_allclose(predicted_by(column, target, folds), target)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "draws"), [("status", 100), ("age", 40)])
def test_a_study_without_a_leak_raises_no_alarm(target, draws):
    quiet = 0
    for seed in range(draws):
        table, metadata, _ = study(seed)
        quiet += not any(dangers(audit(table, metadata, target)).values())
    assert quiet >= 0.95 * draws


def with_leak(kind, seed):
    """A study in which `kind` predicts the target, and the name of the column that does."""
    table, metadata, rng = study(seed, 6)
    case = (metadata["status"] == "case").to_numpy()
    if kind == "subject":
        subject = np.repeat(np.arange(SAMPLES // 4), 4)
        sick = rng.permutation(SAMPLES // 4) < SAMPLES // 8
        metadata["status"] = np.where(sick[subject], "case", "control")
        metadata["host"] = [f"h{number}" for number in subject]
        return table, metadata, "host"
    if kind == "batch":
        metadata["plate"] = [f"p{number}" for number in rng.integers(0, 4, SAMPLES) // 2 + 2 * case]
        flip = rng.random(SAMPLES) < 0.15
        metadata.loc[flip, "plate"] = "p0"
        return table, metadata, "plate"
    if kind == "date":
        days = pd.Timestamp("2020-01-01") + pd.to_timedelta(
            rng.normal(0, 30, SAMPLES) + 60 * case, "D"
        )
        metadata["sampled"] = days.strftime("%d/%m/%Y")
        return table, metadata, "sampled"
    table = table.mul(np.where(case, 1, 3), axis=0)
    return table, metadata, "sequencing depth"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["subject", "batch", "date", "depth"])
def test_planted_leaks_are_found(kind):
    found = 0
    for seed in range(25):
        table, metadata, name = with_leak(kind, seed)
        found += dangers(audit(table, metadata))[name] in ("split", "random split", "same")
    assert found >= 24


@pytest.mark.parametrize("kind", ["subject", "batch", "date", "depth"])
def test_a_leak_comes_first_with_the_option_that_helps(kind):
    table, metadata, name = with_leak(kind, 0)
    first = audit(table, metadata).iloc[0]
    assert first["column"] == name
    option = {"subject": "--group-column host", "batch": "--batch-column plate"}.get(kind, "")
    assert f"{name} predicts status with AUROC" in first["advice"]
    assert option in first["advice"]


def test_groups_prevent_the_leak_of_a_subject():
    table, metadata, name = with_leak("subject", 0)
    row = audit(table, metadata, group_column=name).set_index("column").loc[name]
    assert row["danger"] == "prevented"
    assert row["random"] > 0.95
    assert abs(row["split"] - 0.5) < 0.1


def test_ids_constants_and_missing_values_are_said():
    table, metadata, _ = study(1, 0)
    metadata["id"] = [f"x{row}" for row in range(SAMPLES)]
    metadata["constant"] = "same"
    metadata["empty"] = ""
    metadata["once"] = ["x"] + [""] * (SAMPLES - 1)
    metadata.loc[metadata.index[:50], "age"] = np.nan
    frame = audit(table, metadata).set_index("column")
    assert "an id, no leak" in frame.loc["id", "advice"]
    assert frame.loc["constant", "advice"] == "constant is constant."
    assert (frame.loc["empty", "levels"], frame.loc["empty", "advice"]) == (0, "empty is empty.")
    assert frame.loc["once", "advice"] == ""
    assert np.isfinite(frame.loc["age", "random"])


def test_the_target_in_other_words_is_said():
    table, metadata, _ = study(2, 0)
    metadata["diagnosis"] = metadata["status"].map({"case": "sick", "control": "well"})
    first = audit(table, metadata).iloc[0]
    assert (first["column"], first["danger"]) == ("diagnosis", "same")


def test_cells_that_are_empty_may_tell_the_target():
    table, metadata, _ = study(4, 0)
    metadata["drug"] = metadata["status"].map({"case": "yes", "control": ""})
    metadata.loc[metadata.index[:20], "drug"] = ""
    first = audit(table, metadata).iloc[0]
    assert (first["column"], first["danger"]) == ("drug", "split")


def test_the_report_of_a_training_holds_studies_out_as_its_folds_do(tmp_path):
    table, metadata, rng = study(5, 0)
    metadata["site"] = np.where(np.arange(SAMPLES) < SAMPLES // 2, "east", "west")
    sick = rng.random(SAMPLES) < np.where(metadata["site"] == "east", 0.9, 0.1)
    metadata["status"] = np.where(sick, "case", "control")
    metadata["host"] = [f"h{row // 2}" for row in range(SAMPLES)]
    options = {"table": IN_MEMORY, "metadata": IN_MEMORY, "metadata_column": ("status",)}
    options |= {"study_column": "site", "group_column": "host", "rarefy_depth": 500}
    config = configured(FineTuneConfig(), options, "train")
    inputs = Inputs((table_from(table, need_sequences=False),), metadata=metadata_from(metadata))
    report = TrainingReport(HeldOut(load_folds(config, inputs=inputs), tmp_path), [])
    (found,) = report._audits(["status"]).values()
    scores = found.frame.set_index("column").loc["site"]
    assert scores["random"] > 0.8
    assert scores["split"] < 0.5


def test_two_classes_of_one_sample_each_and_one_value():
    table, metadata, _ = study(3, 0)
    metadata["rare"] = ["a", "b"] + ["c"] * (SAMPLES - 2)
    assert not any(dangers(audit(table, metadata, "rare")).values())
    metadata["one"] = "same"
    with pytest.raises(InputError, match="'one' has one value"):
        audit(table, metadata, "one")
    with pytest.raises(InputError, match="--group-column: 'one' has one value"):
        audit(table, metadata, group_column="one")
    with pytest.raises(InputError, match="'nowhere'"):
        audit(table, metadata, study_column="nowhere")


def test_the_command_prints_the_table_and_writes_it(tmp_path, capfd):
    from aam.cli import main

    table, metadata, _ = with_leak("subject", 0)
    table.T.to_csv(tmp_path / "table.tsv", sep="\t", index_label="#OTU ID")
    metadata.to_csv(tmp_path / "metadata.tsv", sep="\t", index_label="sample-id")
    words = [str(tmp_path / "table.tsv"), str(tmp_path / "metadata.tsv")]
    words += ["--metadata-column", "status", "--output", str(tmp_path / "audit")]
    assert main(["audit", *words, "--rarefy-depth", "500"]) == 0
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.endswith("--rarefy-depth 500 --group-column host --output-dir run")
    written = pd.read_csv(tmp_path / "audit/columns.tsv", sep="\t")
    assert written.loc[0, "column"] == "host"
    assert main(["audit", *words]) == 2


def test_a_column_that_nobody_named_is_read_as_text():
    table, metadata, _ = study(5, columns=0)
    metadata["ph"] = [f"7,{row % 9}" for row in range(SAMPLES)]
    frame = audit(table, metadata).set_index("column")
    assert frame.loc["ph", "form"] == "category"
    assert frame.loc["ph", "levels"] == 9
