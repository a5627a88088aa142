"""The estimators: the same models as the commands', under the rules of scikit-learn."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import pickle
import shlex
import tempfile
from pathlib import Path
from typing import Any

import biom
import numpy as np
import pandas as pd
import pytest
import skbio
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

import aam
from aam.cli import main
from aam.config import DataConfig, FineTuneConfig
from aam.data.inputs import is_numeric
from aam.errors import InputError
from aam.options import command_line, options_of
from tests.refusals import refusal


@pytest.fixture(scope="module")
def study_folder(simulate_study) -> Path:
    return simulate_study()


@pytest.fixture(scope="module")
def metadata(study_folder: Path) -> pd.DataFrame:
    return pd.read_csv(study_folder / "metadata.tsv", sep="\t", index_col=0)


@pytest.fixture(scope="module")
def biom_table(study_folder: Path) -> biom.Table:
    return biom.load_table(str(study_folder / "table.biom"))


@pytest.fixture(scope="module")
def small() -> dict[str, object]:
    return {
        "rarefy_depth": 300,
        "embedding_dim": 16,
        "attention_layers": 1,
        "attention_heads": 2,
        "batch_size": 32,
        "threads": 1,
        "epochs": 1,
        "device": "cpu",
    }


@pytest.fixture(scope="module")
def frame(biom_table: biom.Table) -> pd.DataFrame:
    counts = biom_table.matrix_data.T.toarray().astype(int)
    return pd.DataFrame(counts, biom_table.ids(), biom_table.ids(axis="observation"))


@pytest.fixture(scope="module")
def regressor(
    frame: pd.DataFrame, metadata: pd.DataFrame, small: dict[str, object]
) -> aam.AmpliconRegressor:
    return aam.AmpliconRegressor(**small).fit(frame, metadata["ph"], groups=metadata["subject"])


@pytest.fixture(scope="module")
def classifier(
    frame: pd.DataFrame, metadata: pd.DataFrame, small: dict[str, object]
) -> aam.AmpliconClassifier:
    return aam.AmpliconClassifier(**small).fit(frame, metadata["biome"].to_numpy())


def test_estimator_and_command_predict_the_same_bits(
    study_folder, frame, small, regressor, tmp_path
):
    train = (
        f"train --table {study_folder}/table.biom --metadata {study_folder}/metadata.tsv".split()
    )
    train += ["--metadata-column", "ph", "--group-column", "subject", "--test-size", "0"]
    train += shlex.split(command_line("", **small))[2:]
    assert main([*train, "--output-dir", str(tmp_path / "run")]) == 0
    loaded = aam.load(tmp_path / "run", device="cpu", threads=1)
    ours, theirs = regressor.predict(frame), loaded.predict(study_folder / "table.biom")
    assert loaded.targets == ("ph",)
    assert np.array_equal(ours, theirs.loc[list(frame.index), "ph"].to_numpy())
    # And a model of the estimator is read by the command.
    regressor.save(tmp_path / "saved")
    assert "never replaced; choose another path, or" in refusal(regressor.save, tmp_path / "saved")
    predict = f"predict --table {study_folder}/table.biom --model {tmp_path}/saved".split()
    assert (
        main([*predict, "--threads", "1", "--device", "cpu", "--output", str(tmp_path / "p.tsv")])
        == 0
    )
    written = pd.read_csv(tmp_path / "p.tsv", sep="\t", index_col=0).loc[list(frame.index), "ph"]
    np.testing.assert_allclose(written, ours, rtol=1e-6)


def test_every_kind_of_table_gives_the_same_predictions(study_folder, frame, biom_table, regressor):
    path = study_folder / "table.biom"
    expected = regressor.predict(path)
    sparse = frame.astype(pd.SparseDtype(int, 0))
    for table in (biom_table, aam.read_table(path), str(path), sparse):
        assert np.array_equal(regressor.predict(table), expected)
    backwards = regressor.predict(frame.iloc[::-1, ::-1])[::-1]
    np.testing.assert_allclose(backwards, expected, rtol=1e-5)


def test_classes_come_back_as_they_were_given(frame, metadata, classifier):
    shares = classifier.predict_proba(frame)
    assert classifier.classes_.tolist() == sorted(metadata["biome"].unique())
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert np.array_equal(classifier.predict(frame), classifier.classes_[shares.argmax(axis=1)])
    assert classifier.score(frame, metadata["biome"]) == np.mean(
        classifier.predict(frame) == metadata["biome"]
    )


def test_embeddings_and_reprs(frame, classifier):
    model = classifier.model_
    assert model.embed(frame).shape == (60, 16)
    assert model.embed(frame, asvs=True).shape == (80, 16)
    assert "targets: y" in repr(model)
    assert repr(aam.AmpliconClassifier(epochs=3)) == "AmpliconClassifier(epochs=3)"
    assert "60 samples" in repr(aam.read_table(frame))


def test_explanations_are_those_of_the_command(study_folder, frame, metadata, regressor, tmp_path):
    options = {"prediction_passes": 1}
    explained = regressor.explain(
        frame, metadata["ph"], metadata["subject"], output_dir=tmp_path / "ours", **options
    )
    regressor.save(tmp_path / "saved")
    words = (
        f"explain --model {tmp_path}/saved --table {study_folder}/table.biom --metadata "
        f"{study_folder}/metadata.tsv"
    )
    words += " --group-column subject --prediction-passes 1 --threads 1 --device cpu"
    assert main([*words.split(), "--output-dir", str(tmp_path / "theirs")]) == 0
    for name in ("features.tsv", "samples.tsv"):
        ours, theirs = (
            pd.read_csv(tmp_path / run / "ph" / name, sep="\t") for run in ("ours", "theirs")
        )
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-4)
    features = pd.read_csv(
        tmp_path / "theirs" / "ph" / "features.tsv", sep="\t", index_col="feature-id"
    )
    assert explained.index.tolist() == features.index.tolist()
    np.testing.assert_allclose(explained["importance"], features["importance"], rtol=1e-4)
    # Without a truth there are effects alone.
    few = frame.iloc[:20]
    effects = regressor.model_.explain(few, prediction_passes=1).loc["ph"]
    assert effects["importance"].isna().all()
    assert np.isfinite(effects["effect"]).any()
    with pytest.raises(InputError, match="holds results already"):
        regressor.explain(frame, output_dir=tmp_path / "ours", prediction_passes=1)
    again = regressor.explain(
        few, output_dir=tmp_path / "ours", overwrite=True, prediction_passes=1
    )
    pd.testing.assert_frame_equal(again, effects)


def test_a_copy_of_a_fitted_estimator_predicts_the_same(frame, classifier):
    for copied in (copy.deepcopy(classifier), pickle.loads(pickle.dumps(classifier))):  # noqa: S301
        assert np.array_equal(copied.predict_proba(frame), classifier.predict_proba(frame))


def test_a_turned_table_is_refused(tmp_path):
    """Of hashed names the sequences say which are ASVs."""
    (tmp_path / "s.fasta").write_text(">h1\nACGT\n>h2\nTTGA\n")
    table = pd.DataFrame([[1, 2, 3], [4, 5, 6]], ["h1", "h2"], ["s1", "s2", "s3"])
    regressor = aam.AmpliconRegressor(sequences=str(tmp_path / "s.fasta"))
    assert regressor._table(table.T).sample_ids == ("s1", "s2", "s3")
    assert "the table is turned; transpose it" in refusal(regressor._table, table)


def test_what_cannot_be_fitted_or_predicted_is_said(frame, metadata, regressor):
    ph, small, fit = metadata["ph"], aam.AmpliconRegressor(), aam.AmpliconRegressor().fit
    twice, some = metadata[["batch", "batch"]], metadata[["batch"]].iloc[10:]
    shallow = frame.iloc[:20].copy()
    shallow.iloc[2] = (shallow.iloc[2] > 0).astype(int)
    renamed = frame.set_axis(["#a", "b ", *frame.index[2:]])
    many, flat = aam.AmpliconRegressor(epochs="many"), aam.AmpliconRegressor(rarefy_depth=300)
    classes, tables = [(1, 2), (3, 4)] * 30, {"output_dir": "x", "data": {"tables": ["x"]}}
    refused = {
        "without sequences of ASVs": lambda: fit(frame.to_numpy(), ph),
        "y: 'soil', 'soil', 'soil' and 57 more; expected": lambda: fit(frame, ["soil"] * 60),
        "covariates: columns of the same name: 'batch'": lambda: fit(frame, ph, covariates=twice),
        "10 of 60 samples are not in its index": lambda: fit(frame, ph.iloc[10:]),
        "1 of 60 sample ids cannot stand in metadata: '#a'": lambda: fit(renamed, ph.to_list()),
        "pass covariates.reset_index(drop=True) if": lambda: fit(frame, ph, covariates=some),
        "table is NoneType, without sequences": lambda: fit(None, ph),
        "takes table, tree and metadata as parameters": lambda: aam.pretrain(frame, **tables),
        "expected whole reads": lambda: fit(frame * 0.5 + 0.5, ph),
        "y, groups and covariates: column 'ph' is 1.0 for": lambda: flat.fit(frame, ph * 0 + 1),
        "y: a class is (1, 2), expected": lambda: aam.AmpliconClassifier().fit(frame, classes),
        "'epochs' is 'many': Input should be a valid integer": lambda: many.fit(frame, ph),
        "unknown option 'thread'; did you mean 'threads'": lambda: aam.load("x", thread=1),
        "'overwrite': of the command": lambda: aam.load("x", overwrite=True),
        "aam.load: unknown option 'new_study'": lambda: aam.load("x", new_study=True),
        "no manifest.json": lambda: aam.load("nowhere"),
        "aam.load: no path is given": lambda: aam.load(None),
        "no path is given; give the folder": lambda: aam.load([]),
        "fitted on at least 20": lambda: regressor.predict_interval(frame.iloc[:5]),
        "1 of 20 samples cannot be predicted, such as 'sample-03'": lambda: regressor.predict(
            shallow
        ),
    }
    for message, call in refused.items():
        assert message in refusal(call)
    assert "below the model's depth" in refusal(regressor.predict, shallow)
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        small.predict(frame)
    with pytest.raises(TypeError, match=r"AmpliconEstimator.__init__\(\) got .* argument 'epoch'"):
        aam.AmpliconRegressor(epoch=3)
    table = aam.read_table(shallow)
    assert len(regressor.predict(table[table.depths >= regressor.model_.depth])) == 19
    assert np.isnan(regressor.model_.predict(shallow).loc["sample-03", "ph"])


# The checks of scikit-learn that need no numeric array. All others fit arrays without names of
# columns, which hold no sequences: the tag two_d_array=False tells scikit-learn so, and its own
# check_estimator leaves them out.
CHECKS = (
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_do_not_raise_errors_in_init_or_set_params",
)


@pytest.mark.parametrize("kind", [aam.AmpliconRegressor, aam.AmpliconClassifier])
def test_checks_of_scikit_learn_pass(kind):
    for name in CHECKS:
        getattr(estimator_checks, name)(kind.__name__, kind())


@pytest.mark.slow
def test_covariates_and_intervals(frame, metadata, small):
    covariates = metadata[["season", "null"]]
    one = aam.AmpliconRegressor(**small, test_size=0.5)
    one.fit(frame, metadata["ph"], covariates=covariates)
    low, high = one.predict_interval(frame, covariates).T
    predicted = one.predict(frame, covariates)
    assert np.all((low < predicted) & (predicted < high))
    assert "covariates: not given, and the model reads" in refusal(one.predict, frame)
    assert one.model_.models[0].covariates.columns == ("season", "null")


def test_tables_of_any_numbers_are_read_and_others_named(frame):
    reads = aam.read_table(frame).counts.toarray()
    objects, nullable, gaps = (
        frame.astype(object),
        frame.astype("Int64"),
        frame.astype(pd.SparseDtype(float, np.nan)),
    )
    for table in (objects, nullable, gaps, frame.astype("Float64"), frame.astype("category")):
        np.testing.assert_array_equal(aam.read_table(table).counts.toarray(), reads)
    objects.iloc[2, 3] = "many"
    with pytest.raises(
        InputError,
        match=r"'many' at sample 'sample-03', column '.*' is not a number; expected reads",
    ):
        aam.read_table(objects)
    nullable.iloc[2, 3] = pd.NA
    with pytest.raises(InputError, match=r"sample 'sample-03', .* expected whole reads"):
        aam.read_table(nullable)
    assert "the DataFrame holds complex128, expected whole reads" in refusal(
        aam.read_table, frame.astype(complex)
    )
    for missing in (None, np.nan):
        with pytest.raises(InputError, match="1 sample ids are empty, the first is sample 1"):
            aam.read_table(frame.set_axis([missing, *frame.index[1:]]))


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
def test_missing_classes_are_refused(frame, metadata, small, missing):
    y = metadata["biome"].astype(object)
    y.iloc[3] = missing
    with pytest.raises(InputError, match="y: 1 samples have no class, the first at position 3"):
        aam.AmpliconClassifier(**small).fit(frame, y.to_numpy())


@pytest.fixture(scope="module")
def pretrained(frame, study_folder, small, tmp_path_factory) -> tuple[aam.Model, Path]:
    folder = tmp_path_factory.mktemp("pretrained") / "pre"
    return aam.pretrain(frame, study_folder / "tree.nwk", output_dir=folder, **small), folder


def test_pretrain_and_unifrac(frame, study_folder, pretrained):
    tree, (encoder, folder) = study_folder / "tree.nwk", pretrained
    assert encoder.targets == ()
    assert encoder.embed(frame).shape == (60, 16)
    assert "holds results already" in refusal(aam.pretrain, frame, tree, output_dir=folder)
    distances = aam.unifrac(frame, skbio.TreeNode.read(str(tree)), device="cpu", threads=1)
    expected = skbio.diversity.beta_diversity(
        "unweighted_unifrac",
        frame.to_numpy(),
        list(frame.index),
        taxa=list(frame.columns),
        tree=skbio.TreeNode.read(str(tree)),
    )
    np.testing.assert_allclose(distances.filter(frame.index).data, expected.data, atol=1e-6)
    assert aam.unifrac(frame, tree, "faith_pd").index.tolist() == list(frame.index)


def test_what_is_in_memory_is_written_to_no_file(
    frame, study_folder, regressor, pretrained, monkeypatch
):
    tree = skbio.TreeNode.read(str(study_folder / "tree.nwk"))
    expected = regressor.model_.predict(study_folder / "table.biom")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_, **__: pytest.fail("a file is written"))
    pd.testing.assert_frame_equal(
        regressor.model_.predict(frame).sort_index(), expected.sort_index(), rtol=1e-5
    )
    assert pretrained[0].embed(frame).shape == (60, 16)
    few = frame[:12]
    # Rarefaction may lose ASVs of few reads.
    explained = regressor.model_.explain(few, prediction_passes=1).loc["ph"].index
    assert set(explained) <= set(few.columns[few.any()])
    assert len(explained) > 0.9 * few.any().sum()
    assert "the table is turned" in refusal(regressor.model_.predict, frame.T)
    options = {"metric": "weighted", "device": "cpu", "threads": 1}
    of_files = aam.unifrac(study_folder / "table.biom", study_folder / "tree.nwk", **options)
    assert aam.unifrac(frame, tree, **options) == of_files.filter(frame.index)


def test_a_run_is_resumed_with_the_same_data_in_memory_alone(
    frame, study_folder, small, pretrained, caplog
):
    first, folder = pretrained
    options = {**small, "tree": study_folder / "tree.nwk", "output_dir": folder}
    inputs = json.loads((folder / "run.json").read_text())["inputs"]
    assert inputs["table"]["path"] == "(in memory)"
    with caplog.at_level(logging.INFO, "aam"):
        again = aam.pretrain(frame, resume_from="auto", **options)
    assert "finished already" in caplog.text
    pd.testing.assert_frame_equal(first.embed(frame), again.embed(frame))
    assert "inputs.table.sha256 was" in refusal(
        aam.pretrain, 2 * frame, resume_from="auto", **options
    )


def test_studies_are_learned_from_and_a_new_one_is_read_relative_to_itself(frame, metadata):
    studies = np.repeat(["first", "second", "new"], 20)
    old, new = studies != "new", studies == "new"
    options = {"rarefy_depth": 300, "threads": 1, "members": ("presence",)}
    with sklearn.config_context(enable_metadata_routing=True):
        model = aam.AmpliconClassifier(**options).set_fit_request(studies=True)
        model.fit(frame[old], (metadata["biome"] == "gut").to_numpy()[old], studies=studies[old])
    assert model.model_.models[0].blend.is_centred
    plain, centred = (
        model.predict_proba(frame[new]),
        model.predict_proba(frame[new], new_study=True),
    )
    assert not np.allclose(plain, centred)
    np.testing.assert_array_equal(
        centred.argmax(axis=1), model.predict(frame[new], new_study=True).astype(int)
    )
    assert "'debug', 'output': of the command" in refusal(
        model.model_.predict, frame[new], output="x.tsv", debug=True
    )
    assert "'overwrite': of the command" in refusal(
        model.model_.explain, frame[new], overwrite=True
    )
    with pytest.raises(InputError, match="all samples are of 'first', expected two studies"):
        aam.AmpliconClassifier(**options).fit(
            frame[:20], metadata["biome"][:20], studies=studies[:20]
        )


@pytest.mark.slow
def test_grid_search_with_groups(study_folder, metadata, small):
    table, subject = aam.read_table(study_folder / "table.biom"), metadata["subject"].to_numpy()
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = aam.AmpliconRegressor(**small).set_fit_request(groups=True)
        grid = {"embedding_dim": [8, 16], "members": [("deep",), ("deep", "presence")]}
        search = GridSearchCV(estimator, grid, cv=GroupKFold(2), error_score="raise")
        search.fit(table, metadata["ph"].to_numpy(), groups=subject)
    assert search.best_params_ in search.cv_results_["params"]
    assert len(search.cv_results_["params"]) == 4
    assert len(search.predict(table)) == 60
    pipeline = make_pipeline(aam.AmpliconRegressor(**small))
    options = {"groups": subject, "cv": GroupKFold(2), "error_score": "raise"}
    scores = cross_val_score(pipeline, table, metadata["ph"].to_numpy(), **options)
    assert np.isfinite(scores).all()


@pytest.mark.slow
def test_folds_in_other_processes_return_their_estimators(frame, metadata, small, tmp_path: Path):
    from sklearn.model_selection import cross_validate

    estimator = aam.AmpliconClassifier(**small)
    options = {"cv": 2, "n_jobs": 2, "return_estimator": True, "error_score": "raise"}
    cross_validated = cross_validate(estimator, frame, metadata["biome"], **options)
    for one, score in zip(cross_validated["estimator"], cross_validated["test_score"], strict=True):
        assert 0 <= score <= 1
        assert len(one.predict(frame)) == 60


@pytest.mark.parametrize("missing", [pd.NA, None])
def test_numbers_with_gaps_are_numbers(missing):
    """A covariate of dtype Int64 with one gap was read as a column of categories."""
    assert is_numeric(pd.Series(pd.array([missing, 1, 2], dtype="Int64")))
    assert is_numeric(pd.Series([missing, 1.5, 2], dtype=object))
    assert not is_numeric(pd.Series([missing, "1", "2"], dtype=object))
    assert not is_numeric(pd.Series(pd.array([missing, True], dtype="boolean")))


# --- what scikit-learn asks of estimators, on tables of reads ------------------------------------


@pytest.fixture(scope="module")
def reads() -> pd.DataFrame:
    """Reads of 24 samples and 30 ASVs."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(30, (24, 30)) * (rng.random((24, 30)) < 0.5)
    counts[:, 0] += 50
    names = ["".join(rng.choice(list("ACGT"), 30)) for _ in range(30)]
    return pd.DataFrame(counts, [f"s{row}" for row in range(24)], names)


KINDS = [
    (aam.AmpliconRegressor, np.arange(24) / 3),
    (aam.AmpliconClassifier, np.array(["a", "b", "c"] * 8)),
]


@pytest.fixture(params=KINDS, ids=["regressor", "classifier"])
def kind(request) -> tuple[aam.AmpliconRegressor, np.ndarray]:
    estimator, y = request.param
    return estimator(rarefy_depth=40, members=("presence",), threads=1), y


def outputs(estimator, reads: pd.DataFrame) -> np.ndarray:
    return getattr(estimator, "predict_proba", estimator.predict)(reads)


@pytest.mark.parametrize("kind", [aam.AmpliconRegressor, aam.AmpliconClassifier])
def test_the_signature_names_types_and_defaults_of_the_options(kind):
    """A new option of `aam train` is added to `Parameters` too."""
    default = FineTuneConfig(data=DataConfig(test_size=0.0))
    entries = [each for each in options_of(default) if each.about.of not in ("command", "run")]
    options = {each.field.name: each.value for each in entries}
    parameters = inspect.signature(kind).parameters
    left_out = {"output_dir", "overwrite"}
    assert {name: each.default for name, each in parameters.items()} == {
        name: value for name, value in options.items() if name not in left_out
    }
    assert not [name for name, each in parameters.items() if each.annotation in (Any, "Any")]


def test_fitting_twice_pickling_and_cloning_give_the_same(kind, reads):
    estimator, y = kind
    with pytest.raises(NotFittedError):
        estimator.predict(reads)
    before = estimator.get_params()
    expected = outputs(estimator.fit(reads, y), reads)
    again = pickle.loads(pickle.dumps(estimator))  # noqa: S301
    np.testing.assert_array_equal(outputs(again, reads), expected)
    np.testing.assert_array_equal(outputs(clone(estimator).fit(reads, y), reads), expected)
    np.testing.assert_array_equal(outputs(estimator.fit(reads, y), reads), expected)
    assert estimator.get_params() == before
    assert not [name for name in vars(clone(estimator)) if name.endswith("_")]


def test_the_features_of_the_fitted_table_are_named(kind, reads):
    estimator, y = kind
    estimator.fit(reads, y)
    assert estimator.n_features_in_ == 30
    assert sorted(estimator.feature_names_in_) == sorted(reads.columns)
    assert len(outputs(estimator, reads.iloc[:, :20])) == 24, "another table has other features"
    half = reads.iloc[:12, :10]
    assert estimator.fit(half + 20, y[:12]).n_features_in_ == 10


def test_inputs_stay_as_they_are(kind, reads):
    estimator, y = kind
    table, values, weights = reads.copy(), y.copy(), np.linspace(1, 2, 24)
    estimator.fit(table, values, sample_weight=weights).predict(table)
    pd.testing.assert_frame_equal(table, reads)
    np.testing.assert_array_equal(values, y)
    np.testing.assert_array_equal(weights, np.linspace(1, 2, 24))


@pytest.mark.parametrize("members", [("presence",), ("presence", "forest")])
def test_weights_of_ones_change_nothing_and_others_do(kind, reads, members):
    estimator, y = kind
    estimator.set_params(members=members)
    expected = outputs(estimator.fit(reads, y), reads)
    for weights in (np.ones(24), np.full(24, 3.0), pd.Series(1, reads.index[::-1])):
        values = outputs(estimator.fit(reads, y, sample_weight=weights), reads)
        np.testing.assert_array_equal(values, expected)
    rare = np.where(y == y[0], 50.0, 1.0)
    assert np.abs(outputs(estimator.fit(reads, y, sample_weight=rare), reads) - expected).max() > 0
    zero = np.where(np.arange(24) < 20, 1, 0)
    assert np.isfinite(outputs(estimator.fit(reads, y, sample_weight=zero), reads)).all()


@pytest.mark.parametrize("left_out", ["q", "s", "qr"])
def test_a_model_with_a_class_of_weight_zero_is_loaded_again(reads, left_out, tmp_path):
    y = np.array(list("qrs") * 8)
    weights = [0.0 if label in left_out else 1.5 for label in y]
    model = aam.AmpliconClassifier(rarefy_depth=100, device="cpu", threads=1)
    probability = model.fit(reads, y, sample_weight=weights).predict_proba(reads)
    assert not np.isin(list(left_out), model.predict(reads)).any()
    model.save(tmp_path / "model")
    loaded = aam.load(tmp_path / "model", device="cpu", threads=1).predict(reads)
    np.testing.assert_allclose(loaded[["y=q", "y=r", "y=s"]], probability, atol=1e-6)


def test_weights_of_a_score_are_those_of_the_metric(kind, reads):
    estimator, y = kind
    estimator.fit(reads, y)
    weights = np.linspace(0, 5, 24)
    metric = r2_score if isinstance(y[0], float) else accuracy_score
    expected = metric(y, estimator.predict(reads), sample_weight=weights)
    assert estimator.score(reads, y, sample_weight=weights) == expected
    assert estimator.score(reads, y) == metric(y, estimator.predict(reads))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(23), "sample_weight"),
        (
            np.r_[np.nan, np.ones(23)],
            "sample_weight: 'nan', '1.0', '1.0' and 21 more; expected finite",
        ),
        (np.r_[np.inf, np.ones(23)], "sample_weight: 'inf', '1.0'"),
        (np.r_[-1, np.ones(23)], "sample_weight: '-1.0', '1.0', '1.0' and 21 more; expected"),
        (["x"] * 24, "sample_weight: not numbers"),
        (np.zeros(24), "sample_weight: '0.0', '0.0', '0.0' and 21 more; expected finite numbers"),
        (2.0, "sample_weight is float, expected an array"),
    ],
)
def test_weights_that_are_none_are_refused(kind, reads, weights, message):
    estimator, y = kind
    assert message in refusal(estimator.fit, reads, y, sample_weight=weights)
    deep = estimator.set_params(members=("deep",))
    assert "the network takes no weights" in refusal(deep.fit, reads, y, sample_weight=np.ones(24))
