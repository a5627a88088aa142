"""Saved models are read bit for bit; what is damaged, missing or of another format is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

import aam
from aam.config import ModelConfig, TrainConfig
from aam.data.region import RegionProfile
from aam.data.study import Study
from aam.data.targets import Covariates, Scale, Targets, TargetSpec
from aam.errors import InputError
from aam.files.atomic import MANIFEST, write_manifest
from aam.model.aam import HeadConfig
from aam.options import RuntimeConfig
from aam.predict.description import InputOptions, Notes
from aam.predict.estimator import Samples
from aam.predict.saved_model import (
    SavedModel,
    encoder_folder,
    load_model,
    load_models,
    save_model,
    save_notes,
)
from aam.training.inference import run_model
from tests.data.labels import labelled
from tests.predict.samples import fit_blend, keep_trees, saved_model
from tests.refusals import refusal

CPU = torch.device("cpu")
HEADS = HeadConfig("unifrac", (0.71, 0.13), counts=True, n_targets=1, n_classes=(2,))
TARGETS = Targets(
    (
        TargetSpec("age", "numeric", (), "zscore", Scale(1 / 3, 2.5), bounds=(0.0, 24.0)),
        TargetSpec("site", "class", ("gut", "oral = mouth")),
    )
)
FILES = ["manifest.json", "model.json", "profile.safetensors", "weights.safetensors"]


@pytest.fixture
def saved(study, model_of) -> SavedModel:
    sizes = {"embedding_dim": 16, "attention_heads": 2, "max_bp": 30, "patch_size": 1}
    data = InputOptions(token_limit=77, group_column="fisch")
    more = {"data": data, "model": ModelConfig(**sizes), "seed": 12}
    more["profile"] = RegionProfile.fit(study.table.sequences)
    more["notes"] = Notes(seen_samples=("s1", "日本"), best_epoch=3)
    return saved_model(model_of(HEADS, **sizes), HEADS, TARGETS, **more)


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    save_model(tmp_path / "run" / "model", saved)
    return tmp_path / "run" / "model"


def test_a_model_comes_back_bit_for_bit(saved, folder, study):
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    loaded = load_model(folder, CPU)
    for field in dataclasses.fields(SavedModel):
        if field.name not in ("blend", "profile"):
            assert getattr(loaded, field.name) == getattr(saved, field.name), field.name
    for name, values in saved.profile.to_arrays().items():
        np.testing.assert_array_equal(loaded.profile.to_arrays()[name], values)
    assert not loaded.network.training
    of = study, np.arange(9), CPU, RuntimeConfig()
    predicted, expected = run_model(loaded.network, *of), run_model(saved.network, *of)
    assert expected.target.std() > 0.01
    np.testing.assert_array_equal(predicted.target, expected.target)
    np.testing.assert_array_equal(predicted.probabilities[0], expected.probabilities[0])
    decoded = loaded.targets.decode(predicted.target)
    np.testing.assert_array_equal(decoded, TARGETS.decode(expected.target))


@pytest.mark.parametrize("name", FILES[1:])
def test_a_flipped_bit_is_detected(folder, name):
    path, damaged = folder / name, f"{name}: missing or damaged"
    content = path.read_bytes()
    for at in (0, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(InputError, match=damaged):
            load_model(folder, CPU)
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=damaged):
        load_model(folder, CPU)


def test_folders_without_a_model_are_refused(tmp_path):
    empty, checkpoint = tmp_path / "empty", tmp_path / "best.pt"
    torch.save({"weight": torch.zeros(2)}, checkpoint)
    empty.mkdir()
    for path in (checkpoint, empty, tmp_path / "nowhere"):
        message = r"no manifest.json; expected a model folder.*\.pt or"
        with pytest.raises(InputError, match=message):
            load_model(path, CPU)
    for fold in ("fold-1", "fold-2"):
        (tmp_path / "run" / fold / "model").mkdir(parents=True)
        (tmp_path / "run" / fold / "model" / MANIFEST).write_text("{}")
    with pytest.raises(InputError, match=r"a run of 2 folds .* such as .*/fold-1/model"):
        load_model(tmp_path / "run", CPU)
    killed = tmp_path / "killed"
    killed.mkdir()
    for path in (killed, tmp_path / "run"):
        (path / "run.json").write_text("{}")
        assert "unfinished" not in refusal(load_model, path, CPU)
        (path / "split.tsv").write_text("")
        message = refusal(load_model, path, CPU)
        assert "the run is unfinished" in message
        assert "; finish it with --resume-from auto" in message
    assert "(2 folds have a model)" in message
    assert message.endswith("such as " + str(tmp_path / "run" / "fold-1" / "model"))
    config = TrainConfig(pretrained_encoder=killed)
    assert "the run is unfinished; finish it" in refusal(encoder_folder, config, "")
    for text in ("", "[]", "{}", '{"format": 1, "files": {"a": 1}}', "[" * 9999):
        (empty / MANIFEST).write_text(text)
        with pytest.raises(InputError, match=r"damaged|not valid JSON"):
            load_model(empty, CPU)


def description_of(folder: Path) -> dict:
    return json.loads((folder / "model.json").read_text(encoding="utf-8"))


def rewrite(folder: Path, **changes) -> None:
    """Change the description and make the manifest anew, as another version of aam would."""
    text = json.dumps({**description_of(folder), **changes})
    (folder / "model.json").write_text(text, encoding="utf-8")
    (folder / MANIFEST).unlink()
    write_manifest(folder)


INTERVAL = {"knots": [1.0, 2.0], "scales": [1.0, 1.0], "quantile": 1.0, "floor": None}


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("", {"format": 2}, r"of format 2, expected 6: aam 0.1.0 \(commit afbb84f9\) reads it"),
        ("", {"format": 3}, "a model of format 3, expected 6"),
        ("", {"format": 5}, "a model of format 5, expected 6"),
        ("", {"format": 7}, "format is 7: Input should be 6"),
        ("model", {"widthh": 3}, "model.widthh is 3: Unexpected keyword argument"),
        ("model", {"embedding_dim": 32}, "not a model this aam can read"),
        ("heads", {"n_targets": 2}, "heads.n_targets is 2: "),
        ("", {"targets": {"specs": [3]}}, "targets.specs.0 is 3: "),
        (
            "",
            {"members": ["presence"]},
            r"members.safetensors: 0/presence \(its arrays are , expected",
        ),
        ("", {"members": ["trees"]}, "members.0 is 'trees': Input should be 'presence' or"),
        ("", {"depth": "many"}, "depth is 'many': "),
        ("", {"depth": 0}, "depth is 0: Input should be greater than or equal to 1"),
        ("", {"notes": {}}, "fields of 'notes' are missing"),
        # Intervals had two bounds for some commits.
        ("notes", {"intervals": {"age": {**INTERVAL, "low": 0.0}}}, "notes.intervals.age.low"),
        ("notes", {"intervals": {"age": {**INTERVAL, "quantile": "x"}}}, "age.quantile is 'x'"),
        ("notes", {"intervals": {"age": {**INTERVAL, "scales": [1.0]}}}, "each with a scale"),
        ("", {"covariates": {"numbers": [float("nan")]}}, "covariates.numbers"),
    ],
)
@pytest.mark.parametrize("version", ["0.0.7", aam.__version__])
def test_a_model_of_another_version_is_refused(folder, part, changes, message, version):
    changed = {part: {**description_of(folder)[part], **changes}} if part else changes
    rewrite(folder, **changed, version=version)
    with pytest.raises(InputError, match=message) as caught:
        load_model(folder, CPU)
    told = caught.value.problems[-1]
    assert told.endswith(
        f"written by aam {version}, this is aam {aam.__version__}; copy it again, install that "
        "version, or train again"
    )


def test_notes_are_added_to_a_saved_model(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    save_notes(folder, {"interval_samples": ("s2",)})
    notes = load_model(folder, CPU).notes
    assert notes == Notes(seen_samples=("s1", "日本"), best_epoch=3, interval_samples=("s2",))
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {n for n in before if before[n] != after[n]} == {"model.json", "manifest.json"}


def test_whoever_may_read_the_folder_may_read_the_model(saved, tmp_path):
    before = os.umask(0o022)
    try:
        save_model(tmp_path / "run" / "model", saved)
    finally:
        os.umask(before)
    files = (tmp_path / "run" / "model").iterdir()
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}
    (loaded,) = load_models([tmp_path / "run"], CPU)
    assert loaded.depth == saved.depth, "the folder of a run stands for its model"


# --- members next to a network, and without one ------------------------------------------------


@pytest.fixture(scope="module")
def blended(study_of, tiny) -> tuple[Study, SavedModel]:
    """A study and a model of all learners but the network, of a number and two kinds of classes."""
    study, rng = study_of(**tiny(samples=40, asvs=30)), np.random.default_rng(0)
    classes = (
        TargetSpec("site", "class", ("gut", "mouth", "skin")),
        TargetSpec("case", "class", ("no", "yes")),
    )
    targets = Targets(
        (TargetSpec("age", "numeric", (), "zscore", Scale(3.0, 2.0), bounds=(0.0, 9.0)), *classes)
    )
    target, covariate = rng.normal(size=(2, 40, 1)).astype(np.float32)
    labels = {"target": target, "label": np.stack([rng.integers(0, n, 40) for n in (3, 2)], axis=1)}
    category = rng.integers(0, 3, (40, 1))
    study = labelled(study, **labels, category=category, covariate=covariate)
    samples = Samples.of_study(study, np.arange(40), [2])
    covariates = Covariates({"diet": ("a", "b")}, {"weight": Scale(0.0, 1.0)})
    blend = fit_blend(study, targets, samples)
    keep_trees(blend, 3)
    profile = RegionProfile.fit(study.table.sequences)
    return study, saved_model(targets=targets, covariates=covariates, profile=profile, blend=blend)


def outputs(study, saved) -> list[np.ndarray]:
    samples = Samples.of_study(study, np.arange(9), saved.covariates.levels)
    rarefactions = samples.rarefactions(study.depth, study.seed, 2)
    draws = [saved.blend.outputs(rarefied) for rarefied in rarefactions]
    return [np.stack(values) for values in zip(*draws, strict=True)]


def test_a_model_without_a_network_holds_none(blended, tmp_path):
    study, saved = blended
    save_model(tmp_path / "model", saved)
    names = ["manifest.json", "members.safetensors", "model.json", "profile.safetensors"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == names
    loaded = load_model(tmp_path / "model", CPU)
    assert (loaded.network, loaded.reference, loaded.device) == (None, None, CPU)
    assert loaded.members == ("presence", "forest")
    for values, expected in zip(outputs(study, loaded), outputs(study, saved), strict=True):
        np.testing.assert_array_equal(values, expected)
    alone = loaded.only("presence")
    assert alone.members == ("presence",)
    message = "it has no network, only 'presence', 'forest'"
    with pytest.raises(InputError, match=message):
        loaded.require_network()


# --- a model folder from a stranger: whole, and wrong ------------------------------------------


def tamper(folder: Path, file: str, ending: str, change) -> None:
    """Change the arrays whose names end so, and make the manifest anew."""
    arrays = safetensors.numpy.load_file(folder / file)
    changed = {
        # safetensors writes the memory as it lies.
        name: np.array(change(values.copy()), order="C") if name.endswith(ending) else values
        for name, values in arrays.items()
    }
    assert any(changed[name] is not arrays[name] for name in arrays), ending
    safetensors.numpy.save_file(changed, folder / file)
    rewrite(folder)


def put(value: float, place: int = 0):
    """Return a change of one number."""

    def change(values: np.ndarray) -> np.ndarray:
        values.reshape(-1)[place] = value
        return values

    return change


@pytest.mark.parametrize(
    "sizes",
    [{"embedding_dim": 4 * 10**9}, {"attention_layers": 10**9}, {"max_bp": 10**15}],
    ids=str,
)
def test_sizes_that_the_weights_do_not_have_take_no_memory(folder, sizes):
    rewrite(folder, model={**description_of(folder)["model"], **sizes})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"not a model this aam can read|max_bp: too large"):
        load_model(folder, CPU)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"


# Arrays of a linear model and of a forest.
LEARNED = ("coef_", "intercept_", "names_", "thresholds_", "range_")
LEARNED += ("node_count", "left_child", "threshold", "value")


@pytest.mark.parametrize("file", ["weights.safetensors", "profile.safetensors"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(folder, file, value):
    arrays = safetensors.numpy.load_file(folder / file)
    name = next(name for name, values in arrays.items() if values.dtype.kind == "f")
    tamper(folder, file, name, put(value))
    with pytest.raises(InputError, match=f"{file}: {name} holds numbers that are not finite"):
        load_model(folder, CPU)


@pytest.mark.parametrize(
    ("ending", "change", "message"),
    [
        ("coef_", put(np.nan), "coef_ holds numbers that are not finite"),
        ("threshold", put(np.nan), "threshold holds numbers that are not finite"),
        *(
            (name, lambda values: values.reshape(-1)[0], "members.safetensors: ")
            for name in LEARNED
        ),
        ("coef_", lambda values: values[:, :0], "coef_ has shape"),
        ("coef_", lambda values: values[:3], "coef_ has shape"),
        ("names_", lambda values: values + 128, "members.safetensors: 0/presence"),
        ("intercept_", lambda values: values[:-1], "intercept_ has shape"),
        ("thresholds_", lambda values: values[:-1], "has shape"),
        ("range_", lambda values: values[::-1], "range_ is not in ascending order"),
        ("left_child", put(0), "has a child that is not after it"),
        ("right_child", put(10**6), "has a child that is not after it"),
        ("feature", put(-1), "reads none of 30 features|reads none of 33 features"),
        ("feature", put(10**6), "reads none of"),
        ("node_count", put(1), "nodes, expected"),
        ("node_count", lambda values: values[:0], "trees of 0"),
        (
            "node_count",
            lambda values: np.append(values, [-1, 1]),
            "node_count is -1 to .*, expected 1",
        ),
        ("threshold", lambda values: values[:-1], "threshold has shape"),
        ("value", lambda values: values[:-1], "value has shape"),
        ("value", lambda values: values[:, :0], "value has shape"),
    ],
)
def test_members_that_do_not_fit_together_are_refused(blended, tmp_path, ending, change, message):
    save_model(tmp_path / "model", blended[1])
    tamper(tmp_path / "model", "members.safetensors", ending, change)
    with pytest.raises(InputError, match=message):
        load_model(tmp_path / "model", CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": []}, "members: there are none for the targets"),
        ({"members": ["presence", "presence"]}, "members: one occurs twice"),
        ({"members": ["forest"]}, "members.safetensors: arrays of no member"),
        ({"depth": 9, "targets": {"specs": []}}, "members: .* or no targets for them"),
    ],
)
def test_a_description_of_other_members_is_refused(blended, tmp_path, changes, message):
    save_model(tmp_path / "model", blended[1])
    rewrite(tmp_path / "model", **changes)
    with pytest.raises(InputError, match=message):
        load_model(tmp_path / "model", CPU)
