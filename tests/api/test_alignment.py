"""Labels of samples: by id wherever they have an index, never scrambled."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import aam
from aam.data.inputs import aligned, metadata_from
from aam.errors import InputError
from tests.refusals import refusal

IDS = ("001", "002", "003", "010")

# Indexes of values, and what explains that they do not match.
INDEXES = [
    ([1, 2, 3, 10], "zeros before numbers"),
    ([1.0, 2.0, 3.0, 10.0], "a .0 at the end and zeros before numbers"),
    (["X001", "X002", "X003", "X010"], "a leading X"),
    (["001 ", "002 ", "003 ", "010 "], "blanks around them"),
    (["'001'", "'002'", "'003'", "'010'"], "quotes around them"),
    (["001.1", "002.1", "003.1", "010.1"], "a suffix"),
    (["10249.001", "10249.002", "10249.003", "10249.010"], "a prefix"),
    ([b"001", b"002", b"003", b"010"], ""),
    (["001", "002", "003", "x"], ""),
    (pd.RangeIndex(1, 5), ""),
    ([2, 0, 3, 1], ""),
    (pd.MultiIndex.from_tuples([("a", "001"), ("a", "002"), ("b", "003"), ("b", "010")]), ""),
]


@pytest.mark.parametrize(("index", "reason"), INDEXES)
def test_an_index_that_does_not_match_is_never_taken_by_position(index, reason):
    """The values of a Series with such an index were taken in its own order."""
    message = refusal(aligned, pd.Series([1, 2, 3, 4], index), IDS, "y")
    assert "samples are not in its index" in message
    assert "y.to_numpy()" in message
    assert not reason or f"4 of 4 match when you ignore {reason}" in message


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3, 4],
        (1, 2, 3, 4),
        np.array([1, 2, 3, 4]),
        pd.Series([1, 2, 3, 4]),
        pd.array([1, 2, 3, 4]),
        pd.Series([4, 3, 2, 1], ["010", "003", "002", "001"]),
        pd.Series([9, 4, 3, 2, 1], ["011", "010", "003", "002", "001"]),
        pd.DataFrame({"y": [4, 3, 2, 1]}, ["010", "003", "002", "001"]),
        pd.Series([2, 4, 1, 3], pd.Categorical(["002", "010", "001", "003"])),
        pd.Series([2, 4, 1, 3], pd.Index(["002", "010", "001", "003"], dtype="string")),
    ],
)
def test_values_in_order_or_by_id_are_aligned(values):
    assert aligned(values, IDS, "y") == [1, 2, 3, 4]


def test_a_default_index_is_read_by_label_where_samples_are_called_so():
    assert aligned(pd.Series([5, 6, 7]), ("2", "0", "1"), "y") == [7, 5, 6]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pd.Series([1, 2, 3, 4, 5], [*IDS, "001"]), "sample ids twice: '001'"),
        (pd.Series([1, 2, 3]), "y has 3 values, and the table has 4"),
        (
            pd.DataFrame({"y": [1, 2, 3, 4], "z": 1}),
            "y has the shape (4, 2), expected (4,): a value",
        ),
        (None, "y is NoneType, expected an array, a list, or a Series"),
        (3, "y is int, expected an array"),
        (dict.fromkeys(IDS, 1.0), "y is dict, expected an array"),
        ((value for value in IDS), "y is generator, expected an array"),
    ],
)
def test_values_in_no_order_or_of_another_number_are_refused(values, message):
    assert message in refusal(aligned, values, IDS, "y")


@pytest.mark.parametrize("name", ["y", "groups", "studies", "covariates"])
def test_every_input_of_fit_is_aligned_by_its_index(name):
    reads = np.random.default_rng(0).integers(0, 50, (12, 5))
    ids = [f"{row:03}" for row in range(12)]
    table = pd.DataFrame(reads, ids, [letter * 30 for letter in "ACGT"] + ["AC" * 15])
    values = pd.Series([*"ab"] * 6, ids)
    given = {"y": pd.Series(range(12), ids), "groups": values, "studies": values}
    given["covariates"] = values.to_frame("sex")
    given[name] = given[name].set_axis(range(1, 13))
    with pytest.raises(InputError, match=r"samples are not in its index.*zeros before numbers"):
        aam.AmpliconRegressor().fit(table, **given)


def test_metadata_in_memory_has_the_missing_values_of_a_file():
    frame = pd.DataFrame({"site": ["gut", "#N/A", "-", None]}, IDS)
    metadata = metadata_from(frame)
    assert metadata.values("site", IDS) == ("gut", None, "-", None)
    assert "cells of column 'site' are '-' (samples '" in refusal(metadata.require, ["site"])
    assert metadata_from(frame, missing_values=("gut", "-")).values("site", IDS) == (None,) * 4


def test_labels_in_memory_are_missing_only_where_python_says_so():
    frame = pd.DataFrame({"y": ["NA", "none", "-", None]}, IDS)
    metadata = metadata_from(frame, scheme="blank")
    metadata.require(["y"])
    assert metadata.values("y", IDS) == ("NA", "none", "-", None)


def test_text_of_a_data_frame_is_read_as_that_of_a_file(tmp_path):
    columns = {
        "age": ["1", "2.5", "NA", "4"],
        "ph": ["7,1", "6,8", "7", "8,25"],
        "plate": ["01", "02", "x", "y"],
        "site": ["gut", "skin", "-", "gut"],
        "mixed": [1, "2", None, "3"],
    }
    frame = pd.DataFrame(columns, IDS, dtype=object)
    path = tmp_path / "m.tsv"
    frame.to_csv(path, sep="\t", index_label="id")
    for decimal in (".", ","):
        by_path, in_memory = metadata_from(path, decimal), metadata_from(frame, decimal)
        assert in_memory.kinds == by_path.kinds
        for name in columns:
            assert in_memory.values(name, IDS) == by_path.values(name, IDS)
    string = frame.drop(columns="mixed").astype("string")
    assert metadata_from(string).kinds["age"] == "numeric"


def test_a_categorical_dtype_stays_categorical():
    frame = pd.DataFrame({"year": pd.Categorical(["1", "2", "2", "1"]), "day": [1, 2, 3, 4]}, IDS)
    assert metadata_from(frame).kinds == {"year": "categorical", "day": "numeric"}


def test_a_name_of_two_columns_is_refused_only_where_it_is_named(caplog):
    ids = ["s1", "s2"]
    frame = pd.DataFrame([[1, "a", "b", 2.5], [3, "c", "d", 4]], ids, ["ph", "site", "site", "age"])
    metadata = metadata_from(frame)
    assert {name: metadata.values(name, ids) for name in metadata.columns} == {
        "ph": ("1", "3"),
        "age": ("2.5", "4.0"),
    }
    fault = "2 columns are called 'site': column 3, column 4; name each once"
    assert f"metadata: header: {fault}; left out" in caplog.text
    metadata.require(["ph", "age"])
    assert fault in refusal(metadata.require, ["ph", "site"])


NUMBERS = [0.1, 1 / 3, 1e20, -2.5]


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        (np.array(NUMBERS), ("0.1", "0.3333333333333333", "1e+20", "-2.5")),
        (np.array([0.1, 1, 2, 3], np.float32), ("0.10000000149011612", "1.0", "2.0", "3.0")),
        (np.array([1, 2, 2**53 + 1, -3]), ("1", "2", "9007199254740993", "-3")),
        (np.array([1.5, np.nan, 2.0, 3.0]), ("1.5", "", "2.0", "3.0")),
    ],
)
def test_numbers_in_memory_keep_all_their_bits(values, cells):
    metadata = metadata_from(pd.DataFrame({"ph": values}, IDS))
    np.testing.assert_array_equal(metadata.numbers("ph", IDS), values.astype(np.float64))
    np.testing.assert_array_equal(metadata.numbers("ph", IDS[:1:-1]), values[:1:-1])
    assert metadata.values("ph", IDS) == tuple(cell or None for cell in cells)


def test_words_and_infinities_among_numbers_in_memory():
    frame = pd.DataFrame({"ph": [1.0, np.inf, 3.0, -9.0], "age": [1, 2, -9, 4]}, IDS)
    metadata = metadata_from(frame, missing_values=("-9", "-9.0"))
    assert metadata.values("ph", IDS) == ("1.0", "inf", "3.0", None)
    np.testing.assert_array_equal(metadata.numbers("age", IDS), [1, 2, np.nan, 4])
    metadata.require(["age"])
    fault = "'ph' is declared numeric, but sample '002' has 'inf', expected a finite number"
    assert fault in refusal(metadata.require, ["ph"])


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5, None, "4"],
        [Decimal(1), Decimal("2.5"), float("nan"), np.float32(4)],
        pd.array([1, 2.5, pd.NA, 4], "Float64"),
        np.array(["1", "2.5", None, "4"], object),
    ],
)
def test_a_number_is_a_number_in_whatever_type(values):
    estimator = aam.AmpliconRegressor()
    column = estimator._target_column(aligned(values, IDS, "y"))
    np.testing.assert_array_equal(column, [1, 2.5, np.nan, 4])
    assert "'x'; expected numbers of at most 1e+20" in refusal(estimator._target_column, [1, "x"])
    assert "; expected numbers of at most 1e+20" in refusal(estimator._target_column, [1, 10**400])
    assert "'True'; expected numbers" in refusal(estimator._target_column, [1, True])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pd.array([1, None, 3, 10], "Int64"), ("1", None, "3", "10")),
        (pd.array([2**53 + 1, None, 3, 10], "UInt64"), (str(2**53 + 1), None, "3", "10")),
        (pd.array([1.5, None, 3, 10], "Float64"), ("1.5", None, "3.0", "10.0")),
        (pd.Categorical([1, None, 3, 10]), ("1", None, "3", "10")),
        (np.array([1, 2, 3, 10], np.int8), ("1", "2", "3", "10")),
    ],
    ids=str,
)
def test_whole_numbers_with_gaps_stay_whole(values, expected):
    """Classes and groups of a DataFrame are then those of the same metadata in a file."""
    metadata = metadata_from(pd.DataFrame({"site": values}, index=IDS))
    assert metadata.values("site", IDS) == expected
    assert metadata.kinds["site"] == "numeric"
