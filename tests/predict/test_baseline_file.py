"""The file of baselines: what it holds, what it was made from, and when it is refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from aam.errors import InputError
from aam.predict.baselines import (
    Columns,
    Provenance,
    as_prediction_table,
    baselines_in,
    baselines_of,
    check_provenance,
    read_provenance,
    split_digest,
)
from tests.evaluate.small_study import AGE, DIET, SPLITS, metadata


@pytest.fixture
def study(study_of, tiny):
    given = tiny(samples=24, asvs=30)
    given["counts"][2:, 7] = 0
    return study_of(**given)


def test_a_file_of_other_targets_or_classes_is_refused(study):
    ids, baselines = baselines_of(study, SPLITS, DIET, metadata(), Columns())
    table = as_prediction_table(ids, [(DIET, baselines)], SPLITS)
    both, age = (replace(table, specs=specs) for specs in ((AGE, DIET), (AGE,)))
    assert [one.name for one in baselines_in(table, DIET, both)] == [one.name for one in baselines]
    assert baselines_in(table, AGE, both) == (), "of one of two targets only"
    with pytest.raises(InputError, match="no column 'age: BASELINE'"):
        baselines_in(table, AGE, age)
    with pytest.raises(InputError, match="has classes 'food' that the model has not"):
        baselines_in(table, replace(DIET, labels=("air", "milk")), both)


MADE = Provenance(depth=1000, seed=0, table="aa", splits=("x", "y"), covariates=("diet",))


def write(folder: Path, content: object) -> Path:
    (folder / "rf.json").write_text(json.dumps(content))
    return folder / "rf.tsv"


def test_point_14_what_baselines_were_made_from_is_kept_and_compared(tmp_path):
    path = write(tmp_path, {"made_from": asdict(MADE)})
    assert read_provenance(path) == MADE
    assert check_provenance(path, Provenance()) == []
    assert check_provenance(path, replace(MADE, splits=("y",))) == []


@pytest.mark.parametrize(
    ("evaluated", "named"),
    [({"depth": 500}, "1000 reads"), ({"table": "bb"}, "another --table"), ({"splits": ("z",)}, "another --split")],
)
def test_point_14_baselines_of_another_depth_table_or_split_are_refused(tmp_path, evaluated, named):
    path = write(tmp_path, {"made_from": asdict(MADE)})
    with pytest.raises(InputError, match=named):
        check_provenance(path, replace(MADE, **evaluated))


def test_point_14_all_differences_are_in_one_message(tmp_path):
    path = write(tmp_path, {"made_from": asdict(MADE)})
    with pytest.raises(InputError) as caught:
        check_provenance(path, Provenance(depth=1, table="b", splits=("z",)))
    assert len(caught.value.problems) == 3


def test_point_14_other_seeds_covariates_and_unknown_files_are_warned_of(tmp_path):
    path = write(tmp_path, {"made_from": asdict(MADE)})
    seed, covariates = check_provenance(path, replace(MADE, seed=3, covariates=("diet", "sex")))
    assert "seed 0" in seed
    assert "'sex'" in covariates
    for content in ({}, {"made_from": 1}, {"made_from": {"depth": 3}}, []):
        (warning,) = check_provenance(write(tmp_path, content), MADE)
        assert "does not say what the baselines were made from" in warning


def test_the_digest_of_a_split_names_who_is_held_out():
    split = SPLITS[0]
    validation = tuple("validation" if side == "train" else side for side in split.subsets)
    assert split_digest(split) == split_digest(replace(split, subsets=validation))
    assert split_digest(split) != split_digest(SPLITS[1])
