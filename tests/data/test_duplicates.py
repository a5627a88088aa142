"""Samples with the same reads under two ids, in two subsets, are named."""

from __future__ import annotations

import pytest

from aam.data.duplicates import duplicates_across_subsets
from aam.data.split import Split
from aam.data.study import Study

DEPTH = 40


@pytest.fixture
def study(study_of, tiny) -> Study:
    return study_of(**tiny(lengths=(20, 17)), depth=DEPTH)


def test_the_same_reads_under_two_ids_on_two_sides_are_named(study_of, tiny):
    given = tiny()
    given["counts"][4] = given["counts"][1]
    study = study_of(**given)
    ids = study.table.sample_ids
    apart = Split(ids, tuple("test" if name in ("s4", "s5") else "train" for name in ids), ("2",) * 9)
    (message,) = duplicates_across_subsets(study.table, apart)
    assert "1 held-out samples of fold 2 have the very reads of others" in message
    assert "'s1', 's4'" in message
    together = Split(ids, tuple("test" if name in ("s1", "s4") else "train" for name in ids), ("",) * 9)
    assert duplicates_across_subsets(study.table, together) == ()
