"""Learned baselines: the truth they may not see, tuning by groups, their file, and `aam rf-baseline`."""

from __future__ import annotations

import csv
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.neighbors import KNeighborsRegressor

from aam.cli.main import main
from aam.config_commands import ForestConfig
from aam.data.draw import draw_batch, rarefied_table
from aam.data.metadata import Metadata
from aam.data.split import Split, read_split
from aam.data.study import EVALUATION
from aam.data.targets import TargetSpec
from aam.errors import InputError
from aam.evaluation import baseline_file, learned_baselines
from aam.evaluation.baseline_file import baselines_in
from aam.evaluation.baselines import Fold, Task
from aam.evaluation.learned_baselines import FOREST, LEARNED, NEIGHBOURS, TREES
from aam.evaluation.prediction_file import read_predictions
from aam.evaluation.study_baselines import Columns, baselines_of

FEW = ForestConfig(n_estimators=6, n_jobs=1)
IDS = tuple(f"s{row}" for row in range(24))
SPLITS = tuple(
    Split(IDS, tuple("test" if row % 3 == fold else "train" for row in range(24)), (str(fold),) * 24)
    for fold in range(2)
)
AGE, DIET = TargetSpec("age", "numeric"), TargetSpec("diet", "class", ("food", "milk"))


def metadata(ages=None) -> Metadata:
    ages = [str(1.5 * row) for row in range(24)] if ages is None else ages
    columns = {"age": tuple(ages), "diet": ("milk", "food", "food") * 8, "child": tuple("abcdefgh" * 3)}
    kinds = {"age": "numeric", "diet": "categorical", "child": "categorical"}
    return Metadata(ids=IDS, columns=columns, kinds=kinds)


@pytest.fixture
def study(study_of, tiny):
    given = tiny(samples=24, asvs=30)
    given["counts"][2:, 7] = 0
    return study_of(**given)


def learned(study, spec=AGE, ages=None, config=FEW) -> dict[str, np.ndarray]:
    ids, found = baselines_of(study, SPLITS, spec, metadata(ages), Columns("child"), config)
    assert ids == IDS
    return {one.name: one.predicted for one in found if not one.trivial}


# --- learning ----------------------------------------------------------------------------------------------


def test_no_learned_baseline_sees_the_truth_of_what_it_predicts(study):
    ages = metadata().columns["age"]
    other = [age if row % 3 else "999" for row, age in enumerate(ages)]
    first, second = learned(study), learned(study, ages=other)
    assert set(first) == set(LEARNED)
    for name, predicted in first.items():
        np.testing.assert_array_equal(predicted[::3], second[name][::3])
        assert np.isfinite(predicted[[0, 1, 3, 4]]).all()
        assert np.isnan(predicted[2::3]).all(), "in no fold held out"
        assert (predicted[1::3] != second[name][1::3]).any(), "learned from in the other fold"


def test_forests_read_the_shares_of_common_asvs_in_the_table_that_is_evaluated(study):
    found = learned(study, config=replace(FEW, max_features="0.5"))[FOREST]
    shares = (rarefied_table(study) / study.depth).toarray().astype(np.float32)
    assert shares.sum(axis=1) == pytest.approx(1)
    batch = draw_batch(study, np.arange(24), EVALUATION)
    drawn = batch.counts[batch.sample_ids.index("s5")].numpy()
    np.testing.assert_allclose(np.sort(shares[5][shares[5] > 0]), np.sort(drawn[drawn > 0]) / 40)
    train, test = (np.array([side == one for side in SPLITS[0].sides]) for one in ("train", "test"))
    common = (shares[train] > 0).sum(axis=0) >= 3
    assert not common.all()
    trees = RandomForestRegressor(6, max_features=0.5, random_state=0)
    trees.fit(shares[train][:, common], 1.5 * np.flatnonzero(train))
    assert found[test] == pytest.approx(trees.predict(shares[test][:, common]))


def test_neighbours_are_those_on_unifrac(study, monkeypatch):
    monkeypatch.setattr(learned_baselines, "NEAREST", (2,))
    batch = draw_batch(study, np.arange(24), EVALUATION)
    place = [batch.sample_ids.index(name) for name in IDS]
    distance = batch.distance.numpy()[np.ix_(place, place)]
    train, test = (np.array([side == one for side in SPLITS[0].sides]) for one in ("train", "test"))
    expected = []
    for row in np.flatnonzero(test):
        near = np.argsort(distance[row][train])[:2]
        expected.append(np.average(1.5 * np.flatnonzero(train)[near], weights=1 / distance[row][train][near]))
    assert learned(study)[NEIGHBOURS][test] == pytest.approx(np.array(expected), rel=1e-4)


def test_candidates_are_compared_on_groups_that_they_have_not_seen():
    """Ten twins per child: their own twin tells all, other children nothing but their mean."""
    draw = np.random.default_rng(0)
    child, age = np.repeat(np.arange(12), 10), np.repeat(draw.normal(50, 10, 12), 10)
    apart = np.where(child[:, None] == child, 0.01, 1 + draw.random((120, 120)))
    task = Task(age, (), (Fold(child < 9, child >= 9),), np.ones(120), np.ones(120))
    model, rows = KNeighborsRegressor(metric="precomputed"), np.arange(90)
    picked = {}
    for name, groups in (("samples", None), ("children", child)):
        chosen = learned_baselines._best_candidate(
            replace(task, groups=groups), model, {"n_neighbors": (1, 40)}, apart[:90, :90], rows
        )
        picked[name] = chosen.n_neighbors
    assert picked == {"samples": 1, "children": 40}
    few = learned_baselines._best_candidate(task, model, {"n_neighbors": (1, 3, 5)}, apart[:4, :4], np.arange(4))
    assert few.n_neighbors == 1, "others need more samples than each part leaves"


def test_classes_are_probabilities_and_one_that_training_lacks_gets_0(study):
    found = learned(study, replace(DIET, labels=("air", "food", "milk")))
    for name in LEARNED:
        held_out = found[name][::3]
        np.testing.assert_allclose(held_out.sum(axis=1), 1)
        assert (held_out[:, 0] == 0).all()


def test_without_a_tree_there_are_no_neighbours(study, caplog):
    with caplog.at_level(logging.INFO, "aam"):
        found = learned(replace(study, tree=None))
    assert set(found) == {FOREST, TREES}
    assert any("needs a tree" in message for message in caplog.messages)


# --- command -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "study"
    words = f"simulate --output-dir {folder} --samples 40 --asvs 60 --length 50 --depth 900"
    assert main(words.split()) == 0
    return folder


def words(folder: Path, output: Path, more: str = "") -> list[str]:
    text = f"rf-baseline --table {folder}/table.biom --metadata {folder}/metadata.tsv --metadata-column ph biome "
    return f"{text} --rarefy-depth 200 --n-estimators 5 --n-jobs 1 --output {output} {more}".split()


def test_its_file_is_compared_with_a_model_of_the_same_folds(simulated, tmp_path, capsys):
    more = f"--tree {simulated}/tree.nwk --cv 2 --group-column subject --random-seed 3 --max-features sqrt"
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 0
    found = read_predictions(tmp_path / "rf.tsv")
    names = {spec.name for spec in found.specs}
    assert {f"{target}: {name}" for target in ("ph", "biome") for name in LEARNED} < names
    assert "ph: the training median" in names
    assert len(found.sample_ids) == 40
    assert set(found.folds) == set("01")
    figures = json.loads((tmp_path / "rf.json").read_text())["baselines"]
    truth = dict(row[:2] for row in columns(simulated / "metadata.tsv", "sample-id", "ph"))
    error = [abs(v - float(truth[n])) for n, v in zip(found.sample_ids, found.values[f"ph: {TREES}"], strict=True)]
    assert figures["ph"][TREES]["mae"]["value"] == pytest.approx(np.mean(error), rel=1e-5)
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 2
    assert "exists already" in capsys.readouterr().err
    # As a model, the forest itself: it ties with itself and stands beside the others.
    rows = [["sample-id", "ph", "fold", "note"]]
    rows += [[n, str(v), f, ""] for n, v, f in zip(found.sample_ids, found.values[f"ph: {FOREST}"], found.folds,
                                                  strict=True)]  # fmt: skip
    (tmp_path / "p.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    evaluate = f"evaluate --predictions {tmp_path}/p.tsv --metadata {simulated}/metadata.tsv --group-column subject"
    evaluate += f" --baselines {tmp_path}/rf.tsv --output-dir"
    assert main([*evaluate.split(), str(tmp_path / "e")]) == 0
    result = json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]["ph"]
    assert set(LEARNED) < set(result["baselines"])
    assert result["baselines"][FOREST]["mae"] == pytest.approx(result["metrics"]["mae"]["value"], rel=1e-5)
    assert any(said.startswith("Random forest ties the model") for said in result["verdict"])
    moved = (tmp_path / "p.tsv").read_text().replace("\t0\t\n", "\t9\t\n")
    (tmp_path / "p.tsv").write_text(moved)
    assert main([*evaluate.split(), str(tmp_path / "f")]) == 2
    assert "were held out in another fold" in capsys.readouterr().err


def columns(path: Path, *names: str) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [[row[name] for name in names] for row in csv.DictReader(file, dialect="excel-tab")]


def test_files_of_sample_ids_divide_too(simulated, tmp_path, capsys):
    ids = [name for (name,) in columns(simulated / "metadata.tsv", "sample-id")]
    (tmp_path / "train.txt").write_text("\n".join([*ids[:25], "elsewhere"]) + "\n")
    (tmp_path / "val.txt").write_text("\r\n".join(ids[25:35]))
    more = f"--train-samples {tmp_path}/train.txt --val-samples {tmp_path}/val.txt"
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 0
    assert sorted(read_predictions(tmp_path / "rf.tsv").sample_ids) == sorted(ids[25:35])
    assert "1 of 36 samples named are not in the table" in capsys.readouterr().err
    (tmp_path / "val.txt").write_text(ids[3])
    assert main(words(simulated, tmp_path / "other.tsv", more)) == 2
    assert f"1 samples are in both, expected none: '{ids[3]}'" in capsys.readouterr().err


def test_a_split_of_a_run_is_used_as_it_is(simulated, tmp_path):
    rows = [[name, "test" if at % 4 == 0 else "validation" if at % 4 == 1 else "train", ""]
            for at, (name,) in enumerate(columns(simulated / "metadata.tsv", "sample-id"))]  # fmt: skip
    (tmp_path / "split.tsv").write_text("".join("\t".join(r) + "\n" for r in [["sample-id", "side", "fold"], *rows]))
    assert main(words(simulated, tmp_path / "rf.tsv", f"--split {tmp_path}/split.tsv")) == 0
    found = read_predictions(tmp_path / "rf.tsv")
    assert sorted(found.sample_ids) == sorted(read_split(tmp_path / "split.tsv").ids("test"))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("--max-features 7 --n-estimators 0", ["--max-features is 7", "--n-estimators is 0"]),
        ("--train-samples a --cv fold", ["--train-samples and --val-samples need each other", "leave out --split"]),
        ("--cv 1 --split-column fold", ["--cv is 1", "need each other"]),
        ("--validation-size 0", ["no sample is held out"]),
        ("--metadata-column nothing", ["no column 'nothing'"]),
        ("--cv fold --group-column biome", ["groups lie in several folds"]),
        ("--group-column same --cv 2", ["no column 'same'"]),
    ],
)
def test_wrong_options(simulated, tmp_path, capsys, more, named):
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 2
    said = capsys.readouterr().err
    assert all(one in said for one in named), said
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_other_targets_or_classes_is_refused(study):
    ids, found = baselines_of(study, SPLITS, DIET, metadata(), Columns())
    table = baseline_file.as_prediction_table(ids, [(DIET, found)], SPLITS)
    both, age = (replace(table, specs=specs) for specs in ((AGE, DIET), (AGE,)))
    assert [one.name for one in baselines_in(table, DIET, both)] == [one.name for one in found]
    assert baselines_in(table, AGE, both) == (), "of one of two targets only"
    with pytest.raises(InputError, match="no column 'age: BASELINE'"):
        baselines_in(table, AGE, age)
    with pytest.raises(InputError, match="has classes 'food' that the model has not"):
        baselines_in(table, replace(DIET, labels=("air", "milk")), both)
