"""What metadata columns are: kinds by name and data, subjects, nesting, and parts of names."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from aam.data.memory import metadata_from
from aam.predict.column_kinds import kind_by_name, overview
from aam.predict.columns import is_nested, make_column, read_column


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("host_subject_id", "identity"),
        ("PatientID", "identity"),
        ("Patientennummer", "identity"),
        ("sex", "biology"),
        ("Geschlecht", "biology"),
        ("host_age", "biology"),
        ("dieta", "biology"),
        ("sample_type", "biology"),
        ("body_site", "biology"),
        ("plate_id", "technical"),
        ("seqRun", "technical"),
        ("Klasse", "technical"),
        ("collection_date", "time"),
        ("Entnahmedatum", "time"),
        ("patient_visit", "time"),
        ("delivery_centre", "technical"),
        ("sex_of_child", "biology"),
        ("day_of_life", "time"),
        ("tipo_de_muestra", "biology"),
        ("study arm", "biology"),
        ("hospital_name", "technical"),
        ("id_code", "identity"),
        ("x7", None),
    ],
)
def test_a_name_says_what_a_column_is(name, kind):
    assert kind_by_name(name) == kind


def resembling(persons=24, samples=4, asvs=120):
    """Presence of samples of persons who each have ASVs of their own, and the person of each."""
    rng = np.random.default_rng(0)
    usual = rng.random((persons, asvs)) < 0.3
    person = np.repeat(np.arange(persons), samples)
    flipped = rng.random((len(person), asvs)) < 0.08
    return sparse.csr_matrix((usual[person] ^ flipped).astype(np.int64)), person, rng


def text(name, values):
    return make_column(name, [f"v{value}" for value in values], "category")


def test_the_finest_column_whose_samples_resemble_each_other_names_the_subjects():
    presence, person, rng = resembling()
    columns = [
        text("who", person),
        text("klass", person // 3),
        text("school", person // 12),
        text("rack", rng.permutation(np.repeat(np.arange(48), 2))),
        text("sex", person % 2),
    ]
    view = overview(columns, {}, presence, np.zeros(len(person), np.int64))
    kinds = {column.name: column.kind for column in view.columns}
    assert view.subject == "who"
    assert kinds["who"] == "identity"
    assert kinds["klass"] == kinds["school"] == "technical"
    assert kinds["sex"] == "biology"
    assert view.within == {"who": "klass", "klass": "school"}


def test_samples_of_equal_age_name_no_subjects():
    presence, person, _ = resembling()
    age = person
    columns = [text("cohort code", person // 2 * 2)]
    view = overview(columns, {}, presence, age.astype(np.int64))
    assert view.subject is None


def test_a_kind_that_is_set_wins():
    presence, person, _ = resembling()
    columns = [text("who", person), text("plate", person // 2)]
    view = overview(columns, {"plate": "identity", "who": "technical"}, presence, person * 0)
    assert view.subject == "plate"


def test_a_finer_column_is_nested_in_a_coarser_one():
    finer, coarser = text("a", [0, 0, 1, 1, 2, 2]), text("b", [0, 0, 0, 0, 1, 1])
    assert is_nested(finer, coarser)
    assert not is_nested(coarser, finer)


@pytest.mark.parametrize(
    ("labels", "part", "levels"),
    [
        ([f"{'VC'[row % 2]}{row:03d}" for row in range(20)], "the letters in front", 2),
        ([f"s{row}-{'ab'[row % 2]}" for row in range(20)], "part 2", 2),
        ([f"x_{row} {'ab'[row % 2]}.{row}" for row in range(20)], "part 3", 2),
        ([f"{row}{'ab'[row % 2]}" for row in range(20)], "the running number", 20),
    ],
)
def test_parts_of_names_become_columns(labels, part, levels):
    parts = {column.name: column for column in make_column("id", labels, "category").parts}
    assert parts[part].levels == levels


def test_times_of_dates_become_columns():
    moments = pd.Series(pd.date_range("2021-01-30 07:00", periods=40, freq="31h"))
    days = (moments - pd.Timestamp(0)) / pd.Timedelta(days=1)
    column = make_column("taken", moments.astype(str), "date", days.to_numpy())
    parts = {part.name: part for part in column.parts}
    assert set(parts) == {"the month", "the day of the week", "the hour"}
    np.testing.assert_array_equal(parts["the hour"].numbers, moments.dt.hour)


def test_a_code_of_few_values_names_nobody():
    presence, person, _ = resembling(48)
    columns = [text("code", person % 6), text("subject", person)]
    view = overview(columns, {}, presence, np.zeros(len(person), np.int64))
    assert [column.kind for column in view.columns] == ["biology", "identity"]


@pytest.mark.filterwarnings("error")
def test_the_median_of_the_largest_numbers_is_a_number():
    numbers = np.array([1.7e308, 1.5e308, np.nan, -3.0, 1.6e308])
    column = make_column("load", ["a", "b", None, "c", "d"], "number", numbers)
    np.testing.assert_allclose(column.indicators()[2, 0], 1.55e308)


def test_dates_of_some_samples_are_read_in_the_order_of_their_column():
    days = ["04/03/2021", "05/03/2021", "06/04/2021", "25/12/2020"]
    metadata = metadata_from(pd.DataFrame({"drawn": days}, [f"s{row}" for row in range(4)]))
    column = read_column(metadata, "drawn", ["s2", "s0"])
    expected = [np.datetime64("2021-04-06"), np.datetime64("2021-03-04")]
    np.testing.assert_array_equal(column.numbers, np.array(expected).astype(np.int64))
