"""Targets, covariates and weights from metadata."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from aam.config import CovariateConfig, TargetConfig
from aam.data.targets import Covariates, Targets, fit_covariates, fit_labels, fit_targets
from aam.errors import InputError
from aam.io.metadata import Metadata, make_metadata, read_metadata
from tests.refusals import refusal


def table(**columns: list[str]) -> Metadata:
    """A table of samples s0, s1, ... whose kinds are inferred as the reader infers them."""
    n = len(next(iter(columns.values())))
    cells = {name: tuple(cells) for name, cells in columns.items()}
    none = [""] * len(cells)
    return make_metadata([f"s{row}" for row in range(n)], cells, none, none, "metadata")


AGES = ["0", "2", "4", "NA", "10", "1000"]
MIXED = table(
    age=AGES,
    site=["oral", "gut", "oral", "gut", "", "oral"],
    study=["A", "A", "A", "B", "B", "C"],
    plate=["10", "9", "10", "9", "10", "9"],
)
FIRST_FIVE = ["s0", "s1", "s2", "s3", "s4"]


@pytest.mark.parametrize(
    ("transform", "encode"),
    [
        ("none", lambda x: x),
        ("zscore", lambda x: (x - 4) / np.sqrt(14)),
        ("log-zscore", lambda x: (np.log1p(x) - LOGS.mean()) / LOGS.std()),
    ],
)
def test_transforms_are_fitted_on_training_samples_only(transform, encode):
    targets = fit_targets(MIXED, ["age"], FIRST_FIVE, transform=transform)
    encoded, label = targets.encode(MIXED, MIXED.ids)
    numbers = MIXED.numbers("age", MIXED.ids)
    assert encoded.dtype == np.float32
    assert label.shape == (6, 0)
    np.testing.assert_allclose(encoded[:, 0], encode(numbers), rtol=1e-6)
    decoded = targets.decode(encoded)
    assert decoded.dtype == np.float64
    np.testing.assert_allclose(decoded[:, 0], numbers, rtol=1e-5, atol=1e-5)
    assert targets.specs[0].bounds == (0, 10)


LOGS = np.log1p([0, 2, 4, 10])


def test_several_columns_of_both_kinds():
    targets = fit_targets(MIXED, ["site", "age", "study", "plate"], ["s0", "s1", "s2", "s3", "s4"])
    assert [spec.name for spec in targets.numeric] == ["age", "plate"]
    assert [(spec.name, spec.labels) for spec in targets.classes] == [
        ("site", ("gut", "oral")),
        ("study", ("A", "B")),
    ]
    target, label = targets.encode(MIXED, ["s4", "s0"])
    assert target.shape == (2, 2)
    assert label.tolist() == [[-1, 1], [1, 0]]
    assert np.isnan(targets.encode(MIXED, ["s3"])[0][0, 0])


def test_the_order_of_the_samples_changes_nothing():
    random = np.random.default_rng(0)
    metadata = table(
        x=[repr(value) for value in random.lognormal(size=500).tolist()],
        c=[str(k) for k in random.integers(3, size=500)],
    )
    forward = fit_targets(metadata, ["x"], metadata.ids)
    backward = fit_targets(metadata, ["x"], metadata.ids[::-1])
    assert forward == backward


def test_classifier_makes_classes_of_numbers_in_their_own_spelling():
    targets = fit_targets(MIXED, ["plate"], MIXED.ids, classifier=True)
    assert targets.specs[0].labels == ("9", "10")
    assert targets.encode(MIXED, ["s0", "s1"])[1].tolist() == [[1], [0]]
    assert fit_targets(MIXED, ["plate"], MIXED.ids).specs[0].kind == "numeric"


def test_a_column_that_is_declared_categorical_holds_classes():
    metadata = Metadata(
        MIXED.ids, MIXED.columns, {**MIXED.kinds, "plate": "categorical"}, frozenset(["plate"])
    )
    assert fit_targets(metadata, ["plate"], metadata.ids).specs[0].labels == ("10", "9")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            "1 month|2 months|3 months|10 months|12 months",
            "numbers with units: '1 month', '10 months' and 3 more",
        ),
        ("5%|6%|>7%|8 %|<9.5%", "numbers only, in one unit"),
        ("2019-05-01|2019-05-02|2019-05-03|2019-06-01|2020-01-01", "days since one date"),
        ("1/5/2019|2/5/2019|3/5/2019|4/5/2019|5/5/2019", "dates or times"),
        ("1.5.19|2.5.19|3.5.19|4.5.19|5.5.19", "dates or times"),
    ],
)
def test_numbers_with_units_and_dates_are_named_as_such(values, says):
    metadata = table(when=values.split("|"))
    with pytest.raises(InputError, match=f"column 'when' holds .*{re.escape(says)}"):
        fit_targets(metadata, ["when"], metadata.ids)
    declared = Metadata(metadata.ids, metadata.columns, metadata.kinds, frozenset(["when"]))
    assert "classes of one training sample" in refusal(
        fit_targets, declared, ["when"], metadata.ids
    )


def refused(metadata, columns, ids=None, **options):
    return refusal(fit_targets, metadata, columns, ids or metadata.ids, **options)


@pytest.mark.parametrize(
    ("cells", "options", "expected"),
    [
        (["4", "4.0", "4"], {}, "is 4.0 for all 3 training samples"),
        (["NA", "", "-"], {}, "is missing for all 3 training samples"),
        (
            ["gut", "gut", ""],
            {},
            "is 'gut' for the 2 of 3 training samples that have a value; choose",
        ),
        (["4", "4.0", "#N/A"], {}, "is 4.0 for the 2 of 3 training samples that have a value"),
        (["3", "4", "old"], {}, "1 of 3 values that are not finite numbers: 'old' (sample 's2')"),
        (["3", "4", "inf"], {}, "'inf' (sample 's2')"),
        (["3", "4", "1e999"], {}, "'1e999' (sample 's2')"),
        (["0", "-1", "3"], {"transform": "log-zscore"}, "1 values of -1 or less: -1 (sample 's1')"),
        (["gut", "gut", "oral"], {}, "classes of one training sample: 'oral'"),
        (["gut", "gut", "1", "1.0"], {"classifier": True}, "classes of one training sample"),
        (["1", "1", "1.0", "1.0"], {"classifier": True}, "writes one number in two ways"),
        ([f"{k % 101}" for k in range(202)], {"classifier": True}, "101 different values"),
        ([f"a{k % 101}" for k in range(202)], {}, "expected at most 100 classes"),
        (["1e308", "-1e308", "0"], {}, "zscore cannot resolve"),
        (["1e-320", "0", "0"], {}, "zscore cannot resolve"),
    ],
)
def test_columns_that_cannot_be_learned(cells, options, expected):
    assert expected in refused(table(x=cells), ["x"], **options)


def test_options_that_do_not_fit():
    assert "--metadata-column" in refused(MIXED, [])
    assert "no column 'agee'" in refused(MIXED, ["agee"])
    assert "names a column twice" in refused(MIXED, ["age", "age"])


def test_the_problems_of_all_columns_come_together():
    metadata = table(a=["1", "1"], b=["", ""], c=["x", "x"])
    assert len(refused(metadata, ["a", "b", "c"]).splitlines()) == 3


def test_other_samples_may_hold_values_that_training_did_not():
    metadata = table(
        x=["1", "2", "-1", "1e300", "old"], c=["a", "b", "a", "b", "z"], d=["a", "b", "a", "b", "a"]
    )
    train = ["s0", "s1", "s2", "s3"]
    targets = fit_targets(metadata, ["c", "d"], train)
    with pytest.raises(
        InputError, match=r"1 samples \('s4'\) have labels that no training .* in one group or fold"
    ):
        targets.encode(metadata, metadata.ids)
    numbers = fit_targets(metadata, ["x"], ["s0", "s1"], transform="log-zscore")
    assert "-1 or less" in refusal(numbers.encode, metadata, ["s2"])
    assert "not finite numbers" in refusal(numbers.encode, metadata, ["s4"])
    with pytest.raises(InputError, match="too large"):
        fit_targets(table(x=["0", "1e-9", "1e308"]), ["x"], ["s0", "s1"]).encode(
            table(x=["0", "1e-9", "1e308"]), ["s2"]
        )
    with pytest.raises(InputError, match=r"1e\+300 .*too large"):
        fit_targets(metadata, ["x"], ["s0", "s1"], transform="none").encode(metadata, ["s3"])


def every_kind():
    return [
        fit_targets(MIXED, ["site", "age", "plate"], FIRST_FIVE, transform="log-zscore"),
        fit_targets(MIXED, ["plate"], FIRST_FIVE, classifier=True),
    ]


@pytest.mark.parametrize("targets", every_kind(), ids=["mixed", "classes"])
def test_json_round_trip(targets):
    text = json.dumps(targets.to_json(), allow_nan=False)
    assert Targets.from_json(json.loads(text)) == targets


def damaged(path, value):
    entries = json.loads(json.dumps(every_kind()[0].to_json()))
    place = entries
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return entries


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [1],
        [{}],
        damaged([0, "kind"], "other"),
        damaged([0, "kind"], ["class"]),
        damaged([0, "labels"], ["gut"]),
        damaged([0, "labels"], ["gut", "gut"]),
        damaged([0, "labels"], [1, 2]),
        damaged([0, "extra"], 1),
        damaged([1, "scale"], {"center": 0.0, "spread": 0.0}),
        damaged([1, "scale"], {"center": float("nan"), "spread": 1.0}),
        damaged([1, "scale", "center"], "0"),
        damaged([1, "bounds"], None),
        damaged([1, "bounds"], [1.0]),
        damaged([1, "transform"], "sqrt"),
    ],
)
def test_damaged_json_is_refused(value):
    assert "damaged description" in refusal(Targets.from_json, value)


IDS = tuple(f"s{row}" for row in range(9))
COLUMNS = {
    "diet": ("milk", "milk", "bread", "bread", "bread", "", "milk", "rice", "na"),
    "sex": ("f", "m", "f", "m", "f", "m", "f", "m", "f"),
    "bmi": ("1", "2", "3", "", "5", "1", "9", "", "2"),
    "same": ("x",) * 9,
    "seven": ("7",) * 9,
    "empty": ("",) * 9,
    "words": ("1", "x", "3", "4", "5", "6", "7", "8", "9"),
    "age": ("1", "2", "3", "4", "5", "6", "7", "8", "9"),
    "cold": ("-3", "2", "3", "4", "5", "6", "7", "8", "9"),
    "site": ("a", "b", "a", "b", "a", "b", "a", "b", "a"),
}

KINDS = {
    name: "numeric" if name in ("bmi", "seven", "age", "cold") else "categorical"
    for name in COLUMNS
}
METADATA = Metadata(IDS, COLUMNS, KINDS)
TRAIN = IDS[:6]


def fitted(**columns) -> Covariates:
    return fit_covariates(METADATA, CovariateConfig(**columns), TRAIN)


def test_covariates_that_tell_a_target_are_named():
    ids = tuple(f"s{row}" for row in range(40))
    random = np.random.default_rng(0)
    age = random.permutation(40)
    columns = {
        "age": age,
        "months": 12 * age + 3,
        "noise": random.permutation(40),
        "site": ["gut", "skin"] * 20,
        "code": ["G1", "S1", "G2", "S2"] * 10,
        "visit": ["a", "a", "b", "b"] * 10,
        "id": ids,
    }
    texts = {name: tuple(map(str, values)) for name, values in columns.items()}
    numeric = ("age", "months", "noise")
    metadata = Metadata(
        ids, texts, {name: "numeric" if name in numeric else "categorical" for name in texts}
    )
    targets = fit_targets(metadata, ["age", "site"], ids)
    given = CovariateConfig(
        categorical_columns=("code", "visit", "id"), numeric_columns=("months", "noise")
    )
    leaks = fit_covariates(metadata, given, ids).leaks(targets, metadata, ids)
    assert [sentence.split(";")[0] for sentence in leaks] == [
        "warning: metadata: covariate 'months' states 'age' for every sample",
        "warning: metadata: covariate 'code' states 'site' for every sample",
    ]


def test_new_and_empty_categories_are_unknown():
    covariates = fitted(categorical_columns=("diet", "sex"), numeric_columns=("bmi",))
    assert covariates.categorical == {"diet": ("bread", "milk"), "sex": ("f", "m")}
    assert covariates.columns == ("diet", "sex", "bmi")
    category, covariate = covariates.encode(METADATA, IDS)
    text = "\n".join(covariates.unknown_values(METADATA, IDS))
    assert category.T.tolist() == [[2, 2, 1, 1, 1, 0, 2, 0, 0], [1, 2] * 4 + [1]]
    assert (
        "covariate 'diet': 1 samples are in categories that no training sample has ('rice'); "
        "read as unknown"
    ) in text
    assert "covariate 'diet' has no value for 2 of 9 samples; read as unknown" in text
    assert "covariate 'bmi' has no value for 2 of 9 samples; read as unknown" in text
    numbers = [1, 2, 3, 5, 1]
    expected = [
        (float(cell) - np.mean(numbers)) / np.std(numbers) if cell else math.nan
        for cell in COLUMNS["bmi"]
    ]
    np.testing.assert_allclose(covariate[:, 0], expected, rtol=1e-6)
    unknown, missing = covariates.encode(None, IDS[:2])
    assert unknown.tolist() == [[0, 0]] * 2
    assert np.isnan(missing).all()
    assert [values.shape for values in Covariates().encode(METADATA, IDS)] == [(9, 0), (9, 0)]
    assert Covariates.from_json(json.loads(json.dumps(covariates.to_json()))) == covariates


def test_covariates_that_tell_nothing_are_refused_together():
    with pytest.raises(InputError) as caught:
        fitted(categorical_columns=("same", "diet", "empty"), numeric_columns=("seven",))
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "metadata: covariate 'same' is 'x' for all 6 training samples and carries no information",
        "metadata: covariate 'empty' is missing for all 6 training samples and carries no information",
        "metadata: covariate 'seven' is '7' for all 6 training samples and carries no information",
    ]
    with pytest.raises(
        InputError, match="column 'words' has 1 of 6 values that are not finite numbers: 'x'"
    ):
        fitted(numeric_columns=("words",))
    assert "no column 'diett'. Did you mean 'diet'?" in refusal(
        fitted, categorical_columns=("diett",)
    )


def read_text(tmp_path, text: str) -> Metadata:
    (tmp_path / "m.tsv").write_text(text)
    return read_metadata(tmp_path / "m.tsv")


TREATMENTS = ["None", "None", "NA", "penicillin", "not applicable", ""]


def test_missing_values_of_covariates_are_those_of_targets(tmp_path):
    """Issue 15, point 6: the word None is a category; one rule for targets and covariates."""
    rows = "".join(f"s{row}\t{cell}\n" for row, cell in enumerate(TREATMENTS))
    metadata = read_text(tmp_path, f"sample-id\tdrug\n{rows}")
    covariates = fit_covariates(
        metadata, CovariateConfig(categorical_columns=("drug",)), metadata.ids
    )
    assert covariates.categorical == {"drug": ("None", "penicillin")}
    assert covariates.encode(metadata, metadata.ids)[0].ravel().tolist() == [1, 1, 0, 2, 0, 0]
    (message,) = covariates.unknown_values(metadata, metadata.ids)
    assert "no value for 3 of 6 samples; read as unknown" in message


def test_an_empty_column_and_values_outside_the_training_range_are_said():
    """Issue 15, point 6: an empty column, or one 1,000 times too large, passed without a word."""
    covariates = fitted(categorical_columns=("sex",), numeric_columns=("bmi",))
    assert covariates.ranges == {"bmi": (1.0, 5.0)}
    ids = ("a", "b")
    empty = Metadata(
        ids, {"sex": ("", ""), "bmi": ("", "")}, {"sex": "categorical", "bmi": "numeric"}
    )
    assert covariates.warnings(empty, ids) == [
        "metadata: covariate 'sex' has no value for all 2 samples; read as unknown",
        "metadata: covariate 'bmi' has no value for all 2 samples; read as unknown",
    ]
    large = Metadata(ids, {"sex": ("f", "m"), "bmi": ("2000", "0.5")}, empty.kinds)
    (outside,) = covariates.warnings(large, ids)
    assert "covariate 'bmi': 2 of 2 samples lie outside the training range, 1 to 5" in outside
    assert "the farthest is 2000 (sample 'a'); is it in the same unit?" in outside
    assert covariates.unknown_values(large, ids) == []
    within = Metadata(ids, {"sex": ("f", "m"), "bmi": ("1", "5")}, empty.kinds)
    assert covariates.warnings(within, ids) == []
    older = {name: value for name, value in covariates.to_json().items() if name != "ranges"}
    assert Covariates.from_json(json.loads(json.dumps(older))).warnings(large, ids) == []


def specs(*columns: str, **options):
    config = TargetConfig(metadata_column=columns, **options)
    return fit_labels(METADATA, IDS, TRAIN, config, CovariateConfig())[1].specs


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("age", {"best_metric": "auroc"}, "--best-metric auroc is not a metric of these columns"),
        ("age", {"best_metric": "f1"}, "--best-metric f1 is not a metric of these columns"),
        ("site", {"best_metric": "mae"}, "--best-metric mae is not a metric of these columns"),
        ("site", {"best_metric": "r2"}, "--best-metric r2 is not a metric of these columns"),
    ],
)
def test_options_that_do_not_fit_the_columns(columns, options, message):
    with pytest.raises(InputError, match=message):
        specs(*columns.split(), **options)


@pytest.mark.parametrize("options", [{"best_metric": "auroc"}, {"best_metric": "mae"}])
def test_options_that_fit_the_columns(options):
    assert len(specs("age", "site", **options)) == 2
