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
from aam.config import DataConfig, ModelConfig
from aam.data.region import RegionProfile
from aam.data.study import Study
from aam.data.targets import Scale, Targets, TargetSpec
from aam.device.options import RuntimeConfig
from aam.errors import InputError
from aam.files.atomic import MANIFEST, write_manifest
from aam.model.heads import HeadConfig
from aam.predict.blend import LEARNERS, fit_blend
from aam.predict.features import Samples
from aam.predict.network import run_model
from aam.predict.saved_model import SavedModel, load_model, load_models, save_model
from tests.data.labels import labelled
from tests.predict.samples import saved_model
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
    sizes = {"embedding_dim": 16, "attention_heads": 2, "max_bp": 30, "asv_stem": "nucleotide"}
    data = DataConfig(table=Path("some") / "täble.biom", token_limit=77, cv="fold")
    more = {
        "data": data,
        "model": ModelConfig(**sizes),
        "profile": RegionProfile.fit(study.table.sequences),
    }
    notes = {"seen_samples": ["s1", "日本"], "best_epoch": 3}
    return saved_model(model_of(HEADS, **sizes), HEADS, TARGETS, **more, seed=12, notes=notes)


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    save_model(tmp_path / "run" / "model", saved)
    return tmp_path / "run" / "model"


def test_a_model_comes_back_bit_for_bit(saved, folder, study):
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    loaded = load_model(folder, CPU)
    for field in dataclasses.fields(SavedModel):
        if field.name not in ("network", "profile", "blend", "elsewhere"):
            assert getattr(loaded, field.name) == getattr(saved, field.name), field.name
    for name, values in saved.profile.to_arrays().items():
        np.testing.assert_array_equal(loaded.profile.to_arrays()[name], values)
    assert not loaded.network.training
    predicted, expected = (
        run_model(model.network, study, np.arange(9), CPU, RuntimeConfig())
        for model in (loaded, saved)
    )
    assert expected.target.std() > 0.01
    np.testing.assert_array_equal(predicted.target, expected.target)
    np.testing.assert_array_equal(predicted.probabilities[0], expected.probabilities[0])
    np.testing.assert_array_equal(
        loaded.targets.decode(predicted.target), TARGETS.decode(expected.target)
    )


@pytest.mark.parametrize("name", FILES[1:])
def test_a_flipped_bit_is_detected(folder, name):
    path = folder / name
    content = path.read_bytes()
    for position in {0, 7, len(content) // 2, len(content) - 1}:
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        )
        with pytest.raises(InputError, match=f"{name}: missing or damaged"):
            load_model(folder, CPU)
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=f"{name}: missing or damaged"):
        load_model(folder, CPU)
    path.write_bytes(content)
    load_model(folder, CPU)


def test_folders_without_a_model_are_refused(tmp_path):
    checkpoint = tmp_path / "best.pt"
    torch.save({"weight": torch.zeros(2)}, checkpoint)
    (tmp_path / "empty").mkdir()
    for path in (checkpoint, tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(
            InputError, match=r"no manifest.json; expected a model folder.*\.pt file"
        ):
            load_model(path, CPU)
    for fold in ("fold-1", "fold-2"):
        (tmp_path / "run" / fold / "model").mkdir(parents=True)
        (tmp_path / "run" / fold / "model" / MANIFEST).write_text("{}")
    with pytest.raises(InputError, match=r"a run of 2 folds .* such as .*/fold-1/model"):
        load_model(tmp_path / "run", CPU)
    for text in (
        "",
        "[]",
        "3",
        "{}",
        '{"format": 1, "files": 3}',
        '{"format": 1, "files": {"a": 1}}',
        "[" * 9999,
    ):
        (tmp_path / "empty" / MANIFEST).write_text(text)
        with pytest.raises(InputError, match=r"damaged|not valid JSON"):
            load_model(tmp_path / "empty", CPU)


def rewrite(folder: Path, **changes) -> None:
    """Change the description and make the manifest anew, as another version of aam would."""
    path = folder / "model.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8"
    )
    (folder / MANIFEST).unlink()
    write_manifest(folder)


def test_a_model_of_another_version_is_refused(folder):
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    for changes, message in (
        ({"format": 3}, "model format 3, this aam reads 1 to 2"),
        ({"model": {**description["model"], "widthh": 3}}, "unknown key 'widthh'"),
        ({"model": {**description["model"], "embedding_dim": 32}}, "not a model this aam can read"),
        ({"heads": {**description["heads"], "n_targets": 2}}, "not a model this aam can read"),
        ({"targets": [3]}, "damaged description"),
        ({"depth": "many"}, "not a model this aam can read"),
    ):
        for version, other in (
            ("0.0.7", f"this is aam {aam.__version__};"),
            (aam.__version__, "another commit"),
        ):
            rewrite(folder, **{**description, **changes, "version": version})
            with pytest.raises(InputError, match=message) as caught:
                load_model(folder, CPU)
            assert f"written by aam {version}, " in caught.value.problems[-1]
            assert other in caught.value.problems[-1]
            assert "train again" in caught.value.problems[-1]


def test_options_of_heads_that_are_gone_are_left_out(saved, folder):
    heads = json.loads((folder / "model.json").read_text(encoding="utf-8"))["heads"]
    rewrite(
        folder, heads={**heads, "covariates": {**heads["covariates"], "categorical_dropout": 0.1}}
    )
    assert load_model(folder, CPU).heads == saved.heads


def test_whoever_may_read_the_folder_may_read_the_model(saved, tmp_path):
    before = os.umask(0o022)
    try:
        save_model(tmp_path / "run" / "model", saved)
    finally:
        os.umask(before)
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run" / "model").iterdir()
    }
    assert set(modes.values()) == {0o644}, modes
    (loaded,) = load_models([tmp_path / "run"], CPU)
    assert loaded.depth == saved.depth, "the folder of a run stands for its model"


# --- learners beside a network, and without one ------------------------------------------------


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
    study = labelled(
        study,
        target=rng.normal(size=(40, 1)).astype(np.float32),
        label=np.stack([rng.integers(0, 3, 40), rng.integers(0, 2, 40)], axis=1),
        category=rng.integers(0, 3, (40, 1)),
        covariate=rng.normal(size=(40, 1)).astype(np.float32),
    )
    blend = fit_blend(study, targets, np.arange(40), None, 0, tuple(LEARNERS))
    return study, saved_model(
        targets=targets, profile=RegionProfile.fit(study.table.sequences), blend=blend
    )


def outputs(study, saved) -> list[np.ndarray]:
    scores = saved.blend.scores(saved.blend.inputs(Samples.rarefied(study, np.arange(9), [-2, -3])))
    return [
        *saved.blend.blend(scores),
        *(values for of_target in scores for values in of_target.values()),
    ]


def test_a_model_without_a_network_holds_none(blended, tmp_path):
    study, saved = blended
    save_model(tmp_path / "model", saved)
    names = ["learners.safetensors", "manifest.json", "model.json", "profile.safetensors"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == names
    loaded = load_model(tmp_path / "model", CPU)
    assert (loaded.network, loaded.reference, loaded.device, loaded.blend.network_weight) == (
        None,
        None,
        CPU,
        0.0,
    )
    for values, expected in zip(outputs(study, loaded), outputs(study, saved), strict=True):
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)
    with pytest.raises(InputError, match="it has no network, only 'presence', 'forest'"):
        _ = loaded.required_network


def test_a_network_of_format_1_is_read_and_its_learners_are_refused(saved, study, tmp_path):
    save_model(tmp_path / "alone", saved)
    rewrite(tmp_path / "alone", format=1)
    alone = load_model(tmp_path / "alone", CPU)
    assert [fitted.weights for fitted in alone.blend.fitted] == [{"deep": 1.0}] * 2
    predicted, expected = (
        run_model(model.network, study, np.arange(9), CPU, RuntimeConfig())
        for model in (alone, saved)
    )
    np.testing.assert_array_equal(predicted.target, expected.target)
    (tmp_path / "alone" / "members.json").write_text("{}")
    rewrite(tmp_path / "alone", format=1)
    message = refusal(load_model, tmp_path / "alone", CPU)
    assert "learners of model format 1, this aam reads those of 2" in message
    assert "install the one that wrote it (see run.json), or train again" in message


# --- a model folder from a stranger: whole, and wrong ------------------------------------------


def tamper(folder: Path, file: str, ending: str, change) -> None:
    """Change the arrays whose names end so, and make the manifest anew."""
    arrays = safetensors.numpy.load_file(folder / file)
    changed = {
        name: change(values.copy()) if name.endswith(ending) else values
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
    [
        {"embedding_dim": 40_000},
        {"embedding_dim": 4 * 10**9},
        {"attention_layers": 10**9},
        {"max_bp": 10**15},
        {"patch_size": 10**9, "asv_stem": "patch"},
    ],
    ids=str,
)
def test_sizes_that_the_weights_do_not_have_take_no_memory(folder, sizes):
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    rewrite(folder, model={**description["model"], **sizes})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="not a model this aam can read"):
        load_model(folder, CPU)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"


@pytest.mark.parametrize("file", ["weights.safetensors", "profile.safetensors"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(folder, file, value):
    arrays = safetensors.numpy.load_file(folder / file)
    name = next(name for name, values in arrays.items() if values.dtype.kind == "f")
    tamper(folder, file, name, put(value))
    with pytest.raises(InputError, match=f"{file}: {name} holds numbers that are not finite"):
        load_model(folder, CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"notes": {}}, "seen_samples"),
        ({"notes": 3}, "not a model"),
        ({"depth": 0}, "depth 0, expected an integer above 0"),
        ({"covariates": {"numbers": [float("nan")]}}, "not JSON compliant"),
    ],
)
def test_a_description_of_other_kinds_is_refused(folder, changes, message):
    rewrite(folder, **changes)
    with pytest.raises(InputError, match=message):
        load_model(folder, CPU)


@pytest.mark.parametrize(
    ("ending", "change", "message"),
    [
        ("trees_.feature", put(10**6), "a tree reads a feature that is none of"),
        ("trees_.feature", put(-1), "a tree reads a feature that is none of"),
        ("trees_.left", put(10**6), "a node of a tree is out of range"),
        ("trees_.right", put(-1), "a node of a tree is out of range"),
        # The last node goes back to the first: a walk through the tree would not end.
        ("trees_.left", put(0, -1), "a node of a tree is out of range"),
        ("trees_.root", put(10**6), "a node of a tree is out of range"),
        ("trees_.root", put(0, -1), "a node of the trees has two parents, or none"),
        ("trees_.root", lambda values: values[:0], "a node of a tree is out of range"),
        ("trees_.threshold", lambda values: values[:-1], "threshold of trees has shape"),
        ("trees_.value", lambda values: values[:, :0], "value of trees has shape"),
        (
            "trees_.feature",
            lambda values: values.astype(np.float64),
            "nodes of trees are no integers",
        ),
        (
            "sequences_",
            lambda values: values[:-1],
            "weights of presence has shape|a tree reads a feature",
        ),
        ("sequences_", lambda values: values + 128, "no letters"),
        ("coef_.covariates", lambda values: values[1:], "weights of covariates has shape"),
        ("coef_.presence", put(np.nan), "coef_.presence holds numbers that are not finite"),
        ("intercept_", lambda values: values[:-1], "intercepts has shape"),
        ("thresholds_", lambda values: values[:-1], "has shape"),
        ("base_rates_", lambda values: values[:-1], "base rates has shape"),
    ],
)
def test_learners_that_do_not_fit_together_are_refused(blended, tmp_path, ending, change, message):
    save_model(tmp_path / "model", blended[1])
    tamper(tmp_path / "model", "learners.safetensors", ending, change)
    with pytest.raises(InputError, match=message):
        load_model(tmp_path / "model", CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda learners: learners["targets"].pop(), "not a model"),
        (lambda learners: learners["targets"].clear(), "not a model"),
        (
            lambda learners: learners["targets"][0]["weights"].update(deep=1.0),
            "weights .*'deep': 1.0",
        ),
        (lambda learners: learners["targets"][0].update(weights={}), "weights {} for"),
        (lambda learners: learners["targets"][0].update(power="x"), "not a model"),
        (
            lambda learners: learners["targets"][0]["learners"]["forest"]["parameters"].update(
                n_classes=2
            ),
            "2 classes",
        ),
        (
            lambda learners: learners["targets"][0]["learners"]["presence"]["parameters"].update(
                terms={}
            ),
            "weights of",
        ),
        (
            lambda learners: learners["targets"][0]["learners"]["presence"]["fitted"].update(
                range_=[2, 1]
            ),
            "in a range",
        ),
        (lambda learners: learners["features"]["covariates"].update(levels_=[-3]), "covariates of"),
        (lambda learners: learners["features"].pop("presence"), "not a model"),
    ],
)
def test_a_description_of_learners_that_they_do_not_fit_is_refused(
    blended, tmp_path, change, message
):
    save_model(tmp_path / "model", blended[1])
    learners = json.loads((tmp_path / "model" / "model.json").read_text(encoding="utf-8"))[
        "learners"
    ]
    change(learners)
    rewrite(tmp_path / "model", learners=learners)
    with pytest.raises(InputError, match=message):
        load_model(tmp_path / "model", CPU)
