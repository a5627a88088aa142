"""Targets and covariates from metadata."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from aam.config import CovariateConfig, TargetConfig
from aam.data.targets import (
    Covariates,
    Scale,
    Targets,
    described,
    fit_covariates,
    fit_labels,
    fit_targets,
)
from aam.options import to_dict, typed
from tests.data.studies import metadata_of, typed_metadata
from tests.refusals import refusal


def fit(metadata, columns, ids=None, transform="zscore", **options) -> Targets:
    config = TargetConfig(metadata_column=columns, target_transform=transform, **options)
    return fit_targets(metadata.at(ids or metadata.ids), config)


MIXED = metadata_of(
    age=["0", "2", "4", "NA", "10", "1000"],
    site=["oral", "gut", "oral", "gut", "", "oral"],
    study="AAABBC",
    plate=["10", "9"] * 3,
)
FIRST_FIVE = ["s0", "s1", "s2", "s3", "s4"]
LOGS = np.log1p([0, 2, 4, 10])


@pytest.mark.parametrize(
    ("transform", "encode"),
    [
        ("none", lambda x: x),
        ("zscore", lambda x: (x - 4) / np.sqrt(14)),
        ("log-zscore", lambda x: (np.log1p(x) - LOGS.mean()) / LOGS.std()),
    ],
)
def test_transforms_are_fitted_on_training_samples_only(transform, encode):
    targets = fit(MIXED, ["age"], FIRST_FIVE, transform)
    encoded, label = targets.encode(MIXED)
    numbers = MIXED.numbers("age", MIXED.ids)
    assert (encoded.dtype, label.shape) == (np.float32, (6, 0))
    np.testing.assert_allclose(encoded[:, 0], encode(numbers), rtol=1e-6)
    decoded = targets.decode(encoded)
    assert decoded.dtype == np.float64
    np.testing.assert_allclose(decoded[:, 0], numbers, rtol=1e-5, atol=1e-5)
    assert targets.specs[0].bounds == (0, 10)


def test_several_columns_of_both_kinds():
    targets = fit(MIXED, ["site", "age", "study", "plate"], FIRST_FIVE)
    assert [spec.name for spec in targets.numeric] == ["age", "plate"]
    assert [spec.labels for spec in targets.classes] == [("gut", "oral"), ("A", "B")]
    target, label = targets.encode(MIXED.at(["s4", "s0"]))
    assert target.shape == (2, 2)
    assert label.tolist() == [[-1, 1], [1, 0]]
    assert np.isnan(targets.encode(MIXED.at(["s3"]))[0][0, 0])


def test_the_order_of_the_samples_changes_nothing():
    values = np.random.default_rng(0).lognormal(size=500)
    metadata = metadata_of(x=[repr(value) for value in values.tolist()])
    assert fit(metadata, ["x"]) == fit(metadata, ["x"], metadata.ids[::-1])


def test_numbers_are_classes_where_the_classifier_or_the_file_says_so():
    targets = fit(MIXED, ["plate"], classifier=True)
    assert targets.specs[0].labels == ("9", "10")
    assert targets.encode(MIXED.at(["s0", "s1"]))[1].tolist() == [[1], [0]]
    plates = [str(plate) for plate in MIXED.values("plate", MIXED.ids)]
    declared = typed_metadata(MIXED.ids, {"plate": plates}, {"plate": "categorical"})
    assert fit(declared, ["plate"]).specs[0].labels == ("10", "9")


def refused(metadata, columns, **options):
    return refusal(fit, metadata, columns, **options)


@pytest.mark.parametrize(
    ("cells", "options", "expected"),
    [
        ("4 4.0 4", {}, "is 4.0 for all 3 training samples"),
        ("NA null #N/A", {}, "is missing for all 3 training samples"),
        ("gut gut NaN", {}, "is 'gut' for the 2 of 3 training samples that have a value; choose"),
        ("4 4.0 #N/A", {}, "is 4.0 for the 2 of 3 training samples that have a value"),
        (f"{'g' * 999} " * 3, {}, f"is '{'g' * 199}… for all 3 training samples"),
        (f"3 4 {'o' * 999}", {}, f"1e+20: '{'o' * 200}…' (sample 's2'); correct them, or name"),
        ("3 4 old", {}, "1 of 3 values that are no numbers of at most 1e+20: 'old' (sample 's2')"),
        ("3 4 inf", {}, "'inf' (sample 's2')"),
        ("0 -1 3", {"transform": "log-zscore"}, "1 values of -1 or less: -1 (sample 's1')"),
        (" ".join(f"{k % 101}" for k in range(202)), {"classifier": True}, "101 different values"),
        (" ".join(f"a{k % 101}" for k in range(202)), {}, "expected at most 100 classes"),
        (
            "1e21 1 0",
            {},
            "1 of 3 values that are no numbers of at most 1e+20: '1e21' (sample 's0')",
        ),
        ("1e-320 0 0", {}, "zscore cannot resolve"),
    ],
)
def test_columns_that_cannot_be_learned(cells, options, expected):
    assert expected in refused(metadata_of(x=cells.split()), ["x"], **options)


def test_the_problems_of_all_columns_come_together():
    metadata = metadata_of(a="11", b=["", ""], c="xx")
    assert len(refused(metadata, ["a", "b", "c"]).splitlines()) == 3
    assert "--metadata-column" in refused(MIXED, [])
    assert "no column 'agee'" in refused(MIXED, ["agee"])
    assert "names a column twice" in refused(MIXED, ["age", "age"])


def test_other_samples_may_hold_values_that_training_did_not():
    metadata = metadata_of(x=["1", "2", "-1", "1e15", "old"], c=[*"ababz"], d=[*"ababa"])
    targets = fit(metadata, ["c", "d"], ["s0", "s1", "s2", "s3"])
    message = refusal(targets.encode, metadata)
    assert "no training sample has the classes 'z', expected 'a', 'b'; put each class in" in message
    numbers = fit(metadata, ["x"], ["s0", "s1"], "log-zscore")
    assert "-1 or less" in refusal(numbers.encode, metadata.at(["s2"]))
    assert "no numbers of at most 1e+20" in refusal(numbers.encode, metadata.at(["s4"]))
    large = fit(metadata, ["x"], ["s0", "s1"], "none")
    assert large.encode(metadata.at(["s3"]))[0].tolist() == [[np.float32(1e15)]]
    metadata = metadata_of(x=["0", "1e-9", "1e15"])
    scaled, _ = fit(metadata, ["x"], ["s0", "s1"]).encode(metadata)
    assert np.isfinite(scaled).all()


def test_values_are_shown_with_samples_and_groups():
    """A word for missing, another spelling and a code are seen where they are rare, or extreme."""
    metadata = metadata_of(
        birth=["vaginal", "vaginal", "vaginal", "Vaginal", "unknown", "NA", "vaginal"],
        age=[3, 4, 5, 6, 7, -9, ""],
        who="aabbcdd",
        code=[f"c{row}" for row in range(7)],
    )
    groups = metadata.groups("who")
    assert described(metadata, ("birth", "age"), ("birth",), groups) == [
        "metadata: 'birth': 3 classes, samples of groups: 'vaginal' 4 of 3, 'Vaginal' 1 of 1, "
        "'unknown' 1 of 1",
        "metadata: 'age': 6 numbers from -9 to 7, median 4.5, 6 different values",
    ]
    (numbers,) = described(metadata_of(y=[0, 1, 0]), ("y",), (), "abc")
    assert numbers.endswith("2 different values, predicted as numbers; --classifier makes classes")
    many = metadata_of(x=[f"c{row:02d}" for row in range(40)] * 2)
    (listed,) = described(many, ("x",), ("x",), many.ids)
    assert listed.endswith(
        "'c09' 2 of 2, ..., 'c30' 2 of 2, " + listed.split("..., 'c30' 2 of 2, ")[1]
    )
    assert listed.count(" of 2") == 20


EVERY_KIND = [
    fit(MIXED, ["site", "age", "plate"], FIRST_FIVE, "log-zscore"),
    fit(MIXED, ["plate"], FIRST_FIVE, classifier=True),
]


@pytest.mark.parametrize("targets", EVERY_KIND, ids=["mixed", "classes"])
def test_json_round_trip(targets):
    assert typed(json.loads(json.dumps(to_dict(targets), allow_nan=False)), Targets) == targets
    assert not [problem for spec in targets.specs for problem in spec.contradictions()]


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (0, "kind", "other"),
        (0, "labels", [1, 2]),
        (1, "scale", {"center": 0.0, "spread": 0.0}),
        (1, "scale", {"center": float("nan"), "spread": 1.0}),
        (1, "transform", "sqrt"),
    ],
)
def test_damaged_json_is_refused(place, key, value):
    entries = to_dict(EVERY_KIND[0])["specs"]
    entries[place][key] = value
    for damaged in (entries, None, {}, [1], [{}]):
        with pytest.raises(ValueError, match=key if damaged is entries else "specs"):
            typed({"specs": damaged}, Targets)


@pytest.mark.parametrize(
    ("place", "changes", "message"),
    [
        (0, {"labels": ("gut",)}, "its labels are not two or more"),
        (0, {"labels": ("gut", "gut")}, "its labels are not two or more"),
        (0, {"labels": ("oral", "gut")}, "its labels are not two or more in ascending order"),
        (0, {"bounds": (0.0, 1.0)}, "it is of classes and has a transform or bounds"),
        (1, {"bounds": None}, "it is a number and has labels, or no bounds"),
        (1, {"bounds": (9.0, 1.0)}, "it is a number and has labels, or no bounds"),
        (1, {"bounds": (-1.0, 9.0)}, "its smallest value is -1"),
        (1, {"transform": "none"}, "it is not transformed and has a scale"),
        (1, {"scale": Scale(1e3, 1.0)}, "its center is 1000, expected"),
        (1, {"scale": Scale(1.0, 1e3)}, "its center is|its spread is 1000, expected at most"),
    ],
)
def test_values_that_contradict_each_other_are_named(place, changes, message):
    changed = replace(EVERY_KIND[0].specs[place], **changes)
    assert re.match(message, next(iter(changed.contradictions()), ""))


IDS = tuple(f"s{row}" for row in range(9))
COLUMNS = {
    "diet": ("None", "None", "bread", "bread", "bread", "", "None", "rice", "na"),
    "sex": tuple("fmfmfmfmf"),
    "bmi": ("1", "2", "3", "", "5", "1", "9", "", "2"),
    "same": ("x",) * 9,
    "seven": ("7",) * 9,
    "empty": ("",) * 9,
    "words": ("1", "x", *"3456789"),
    "age": tuple("123456789"),
    "site": tuple("ababababa"),
}
NUMERIC = ("bmi", "seven", "age")
KINDS = {name: "numeric" if name in NUMERIC else "categorical" for name in COLUMNS}
METADATA = typed_metadata(IDS, COLUMNS, KINDS)
TRAIN = IDS[:6]


def fitted(categorical=(), numeric=()) -> Covariates:
    config = CovariateConfig(categorical_columns=categorical, numeric_columns=numeric)
    return fit_covariates(METADATA.at(TRAIN), config)


def test_new_and_empty_categories_are_unknown():
    """The word None is a category; missing values are those of targets."""
    covariates = fitted(("diet", "sex"), ("bmi",))
    assert covariates.categorical == {"diet": ("None", "bread"), "sex": ("f", "m")}
    assert covariates.columns == ("diet", "sex", "bmi")
    category, covariate = covariates.encode(METADATA)
    assert category.T.tolist() == [[1, 1, 2, 2, 2, 0, 1, 0, 0], [1, 2] * 4 + [1]]
    assert covariates.unknown_values(METADATA) == [
        "metadata: covariate 'diet': 3 of 9 samples have no value or a category that no training "
        "sample has ('rice'); read as unknown",
        "metadata: covariate 'bmi': 2 of 9 samples have no value; read as unknown",
    ]
    numbers = [1, 2, 3, 5, 1]
    cells = [float(cell) if cell else math.nan for cell in COLUMNS["bmi"]]
    expected = (np.array(cells) - np.mean(numbers)) / np.std(numbers)
    np.testing.assert_allclose(covariate[:, 0], expected, rtol=1e-6)
    unknown, missing = covariates.unknown(2)
    assert unknown.tolist() == [[0, 0]] * 2
    assert np.isnan(missing).all()
    assert [values.shape for values in Covariates().encode(METADATA)] == [(9, 0), (9, 0)]
    assert typed(json.loads(json.dumps(to_dict(covariates))), Covariates) == covariates


def test_covariates_that_tell_nothing_are_refused_together():
    message = refusal(fitted, ("same", "diet", "empty"), ("seven",))
    assert [problem.split(";")[0] for problem in message.splitlines()] == [
        "metadata: covariate 'same' is 'x' for all 6 training samples",
        "metadata: covariate 'empty' is missing for all 6 training samples",
        "metadata: covariate 'seven' is 7.0 for all 6 training samples",
    ]
    text = "column 'words' has 1 of 6 values that are no numbers of at most 1e+20: 'x'"
    assert text in refusal(fitted, (), ("words",))
    assert "no column 'diett'. Columns: " in refusal(fitted, ("diett",))


def test_values_outside_the_training_range_are_named():
    """A column 1,000 times too large passed without a word."""
    covariates, ids = fitted(("sex",), ("bmi",)), ("a", "b")
    assert covariates.ranges == {"bmi": (1.0, 5.0)}

    def warned(*bmi: str) -> list[str]:
        columns = {"sex": ("f", "m"), "bmi": bmi}
        return covariates.warnings(typed_metadata(ids, columns, KINDS))

    (outside,) = warned("2000", "0.5")
    assert "covariate 'bmi': 2 of 2 samples lie outside the range of training, 1 to 5" in outside
    assert "the farthest is 2000 (sample 'a'); is it in the same unit?" in outside
    assert warned("1", "5") == []
    assert "2 of 2 samples have no value; read as unknown" in warned("", "")[0]


@pytest.mark.parametrize(("column", "metric"), [("age", "auroc"), ("site", "mae")])
def test_the_metric_that_chooses_is_one_of_the_columns(column, metric):
    def fitted(*columns):
        config = TargetConfig(metadata_column=columns, best_metric=metric)
        return fit_labels(METADATA, TRAIN, config, CovariateConfig())

    assert f"--best-metric {metric} is not a metric of" in refusal(fitted, column)
    assert len(fitted("age", "site")[1].specs) == 2


@pytest.mark.parametrize("cell", ["1e308", "-9e300", "1.1e20"])
@pytest.mark.filterwarnings("error")
def test_a_number_of_a_covariate_too_large_to_learn_is_refused(cell):
    """In training where their spread is not finite, and in samples that are read later."""
    config = CovariateConfig(numeric_columns=("bmi",))
    metadata = metadata_of(bmi=["21", "19.5", "30", cell])
    says = f"column 'bmi' has 1 of 4 values that are no numbers of at most 1e+20: {cell!r} (sample 's3')"
    training = metadata.at(metadata.ids[:3])
    covariates = fit_covariates(training, config)
    assert says in refusal(covariates.encode, metadata)
    covariates.encode(training)
    assert says in refusal(fit_covariates, metadata, config)
