"""Covariates: fitted on training samples, unknown where new or missing, refused where they tell nothing."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from skbio.metadata import SampleMetadata

from aam.config import CovariateConfig
from aam.data.covariates import Covariates, fit_covariates
from aam.errors import InputError
from aam.io.metadata import Metadata, read_metadata
from tests.data.small_metadata import COLUMNS, IDS, METADATA, TRAIN


def fitted(**columns) -> Covariates:
    return fit_covariates(METADATA, CovariateConfig(**columns), TRAIN)


def test_new_and_empty_categories_are_unknown():
    covariates = fitted(categorical_columns=("diet", "sex"), numeric_columns=("bmi",))
    assert covariates.categorical == {"diet": ("bread", "milk"), "sex": ("f", "m")}
    assert covariates.columns == ("diet", "sex", "bmi")
    encoded = covariates.encode(METADATA, IDS)
    text = "\n".join(covariates.unknown_values(METADATA, IDS))
    assert encoded["category"].T.tolist() == [[2, 2, 1, 1, 1, 0, 2, 0, 0], [1, 2] * 4 + [1]]
    assert (
        "covariate 'diet': 2 samples are in categories that no training sample has ('na', 'rice'); read as unknown"
        in text
    )
    assert "covariate 'diet' has no value for 1 of 9 samples; read as unknown" in text
    assert "covariate 'bmi' has no value for 2 of 9 samples; read as unknown" in text
    numbers = [1, 2, 3, 5, 1]
    expected = [(float(cell) - np.mean(numbers)) / np.std(numbers) if cell else math.nan for cell in COLUMNS["bmi"]]
    np.testing.assert_allclose(encoded["covariate"][:, 0], expected, rtol=1e-6)
    nothing = covariates.encode(None, IDS[:2])
    assert nothing["category"].tolist() == [[0, 0]] * 2
    assert np.isnan(nothing["covariate"]).all()
    assert Covariates().encode(METADATA, IDS) == {}
    assert Covariates.from_json(json.loads(json.dumps(covariates.to_json()))) == covariates


def test_covariates_that_tell_nothing_are_refused_together():
    with pytest.raises(InputError) as caught:
        fitted(categorical_columns=("same", "diet", "empty"), numeric_columns=("seven",))
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "metadata: covariate 'same' is 'x' for all 6 training samples and tells nothing",
        "metadata: covariate 'empty' is missing for all 6 training samples and tells nothing",
        "metadata: covariate 'seven' is '7' for all 6 training samples and tells nothing",
    ]
    with pytest.raises(InputError, match="column 'words' has 1 of 6 values that are no finite numbers: 'x'"):
        fitted(numeric_columns=("words",))
    with pytest.raises(InputError, match=r"no column 'diett'. Did you mean 'diet'\?"):
        fitted(categorical_columns=("diett",))


def read_text(tmp_path, text: str) -> Metadata:
    (tmp_path / "m.tsv").write_text(text)
    return read_metadata(tmp_path / "m.tsv")


TREATMENTS = ["None", "None", "NA", "penicillin", "not applicable", ""]


def test_missing_values_of_covariates_follow_the_rules_of_qiime_2(tmp_path):
    """Issue 15, point 6: the cell None was read as missing; it is a category, and only an empty cell is not."""
    rows = "".join(f"s{row}\t{cell}\n" for row, cell in enumerate(TREATMENTS))
    metadata = read_text(tmp_path, f"sample-id\tdrug\n{rows}")
    covariates = fit_covariates(metadata, CovariateConfig(categorical_columns=("drug",)), metadata.ids)
    assert covariates.categorical == {"drug": ("NA", "None", "not applicable", "penicillin")}
    assert covariates.encode(metadata, metadata.ids)["category"].ravel().tolist() == [2, 2, 1, 4, 3, 0]
    stated = read_text(tmp_path, f"sample-id\tdrug\n#q2:missing\tINSDC:missing\n{rows}")
    assert stated.categories("drug", stated.ids) == ("None", "None", "NA", "penicillin", None, None)


def test_covariates_agree_with_scikit_bio_on_what_is_missing(tmp_path):
    """scikit-bio's SampleMetadata has the rules of QIIME 2."""
    rows = "".join(f"s{row}\t{cell}\n" for row, cell in enumerate(TREATMENTS))
    for directive in ("", "#q2:missing\tINSDC:missing\n"):
        ours = read_text(tmp_path, f"sample-id\tdrug\n{directive}{rows}")
        theirs = SampleMetadata.load(str(tmp_path / "m.tsv")).get_column("drug").to_series()
        expected = [None if value != value else value for value in theirs.tolist()]
        assert list(ours.categories("drug", ours.ids)) == expected


def test_an_empty_column_and_values_outside_the_training_range_are_said():
    """Issue 15, point 6: an empty column, or one 1,000 times too large, passed without a word."""
    covariates = fitted(categorical_columns=("sex",), numeric_columns=("bmi",))
    assert covariates.ranges == {"bmi": (1.0, 5.0)}
    ids = ("a", "b")
    empty = Metadata(ids, {"sex": ("", ""), "bmi": ("", "")}, {"sex": "categorical", "bmi": "numeric"})
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
