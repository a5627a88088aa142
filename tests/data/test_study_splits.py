"""Splits of a study, by the options that ask for them."""

from __future__ import annotations

import dataclasses

import pytest

from aam.config import DataConfig
from aam.data.study import Study
from aam.data.study_splits import make_splits
from aam.errors import InputError
from aam.io.metadata import Metadata

DEPTH = 40


@pytest.fixture
def study(study_of, tiny) -> Study:
    return study_of(**tiny(lengths=(20, 17)), depth=DEPTH)


def test_strata_are_spread_over_what_is_drawn_and_not_over_columns_of_folds(study_of, tiny):
    ids = tuple(f"s{row}" for row in range(30))
    columns = {"site": tuple("abbbbc" * 5), "age": tuple(map(str, range(30))), "fold": tuple("012" * 10)}
    kinds = {"site": "categorical", "age": "numeric", "fold": "numeric"}
    study = dataclasses.replace(study_of(**tiny(samples=30)), metadata=Metadata(ids, columns, kinds))
    (split,) = make_splits(study, DataConfig(stratify="site", test_size=0.4, validation_size=0.0), 0)
    assert sorted(columns["site"][ids.index(name)] for name in split.ids("test")) == ["a"] * 2 + ["b"] * 8 + ["c"] * 2
    for one in make_splits(study, DataConfig(stratify="age", cv="6", validation_size=0.0), 1):
        quintiles = sorted(int(name[1:]) // 6 for name in one.ids("test"))
        assert quintiles == [0, 1, 2, 3, 4], "each sixth of the samples has one of each quintile"
    assert [one.ids("test") for one in make_splits(study, DataConfig(stratify="site", cv="fold"), 0)] == [
        tuple(sorted(ids[fold::3])) for fold in range(3)
    ]
    with pytest.raises(InputError, match="no column 'sit'"):
        make_splits(study, DataConfig(stratify="sit"), 0)
    with pytest.raises(InputError, match="--stratify site"):
        make_splits(dataclasses.replace(study, metadata=None), DataConfig(stratify="site"), 0)


@pytest.mark.parametrize(("samples", "groups", "expected"), [(30, None, 6), (29, None, 0), (60, 30, 12), (60, 29, 0)])
def test_a_fifth_of_the_groups_is_held_out_where_there_are_thirty(study_of, tiny, caplog, samples, groups, expected):
    """Issue 15, point 10: what is reported as held out must be."""
    ids = tuple(f"s{row}" for row in range(samples))
    subject = tuple(f"p{row % (groups or samples)}" for row in range(samples))
    metadata = Metadata(ids, {"subject": subject}, {"subject": "categorical"})
    study = dataclasses.replace(study_of(**tiny(samples=samples)), metadata=metadata)
    with caplog.at_level("INFO"):
        (split,) = make_splits(study, DataConfig(group_column=None if groups is None else "subject"), 0)
    assert len(split.ids("test")) == expected
    assert ("are held out as the test subset" in caplog.text) == bool(expected)
    (everyone,) = make_splits(study, DataConfig(test_size=0.0), 0)
    assert not everyone.ids("test")
