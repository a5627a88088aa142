"""A model folder from a stranger: each field and each array edited in turn is refused at loading,
or predicts the same finite values.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from aam.config import ModelConfig
from aam.data.region import RegionProfile
from aam.data.targets import Covariates, Scale, Targets, TargetSpec
from aam.errors import InputError
from aam.evaluate.conformal import Conformal
from aam.evaluate.likeness import TableLikeness
from aam.files.atomic import MANIFEST, write_manifest
from aam.model.aam import HeadConfig
from aam.options import RuntimeConfig
from aam.predict.description import InputOptions, Notes
from aam.predict.estimator import Samples
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import load_model, save_model
from tests.data.labels import labelled
from tests.predict.samples import fit_blend, keep_trees, saved_model

CPU = torch.device("cpu")
NUMBER = TargetSpec("age", "numeric", (), "zscore", Scale(3.0, 2.0), bounds=(0.0, 9.0))
CLASSES = TargetSpec("site", "class", ("gut", "mouth", "skin"))
NOTES = Notes(("s0", "s1"), ("s0", "s1"), ("g0", "g1"), ("s2",), 3, "it joins")
INTERVAL = Conformal((1.0, 2.0, 2.0), (1.0, 0.5, 0.7), 1.5, 0.0)
LIKENESS = TableLikeness(("ACG", "ACT"), (0.25, 0.5), 40, 1.5, 0.01)

# Values that stand in place of each field, and of the first number of each array.
VALUES = [None, True, -1, -0.5, 1e308, 10**30, math.nan, math.inf, "", "x" * 10_001, [], {}, [[0]]]

KINDS = ["one class", "one number", "two targets with covariates", "by study", "network"]


def targets_of(kind: str) -> Targets:
    specs = {"one class": (CLASSES,), "one number": (NUMBER,), "by study": (CLASSES,)}
    return Targets(specs.get(kind, (NUMBER, CLASSES)))


def notes_of(targets: Targets) -> Notes:
    guesses: dict[str, Any] = {
        spec.name: [0.5, 0.25, 0.25] if spec.labels else 4.0 for spec in targets.specs
    }
    notes = replace(NOTES, guesses=guesses)
    if targets.numeric:
        return replace(notes, intervals={"age": INTERVAL}, likeness=LIKENESS)
    return notes


@pytest.fixture(scope="module", params=KINDS)
def model(request, study_of, tiny, model_of, tmp_path_factory) -> tuple[Any, Path]:
    """A study, and the folder of a model of its samples."""
    study, rng = study_of(**tiny(samples=40, asvs=30)), np.random.default_rng(0)
    profile = RegionProfile.fit(study.table.sequences)
    targets = targets_of(request.param)
    values: dict[str, Any] = {
        "target": rng.normal(size=(40, len(targets.numeric))).astype(np.float32),
        "label": rng.integers(0, 3, (40, len(targets.classes))),
    }
    more: dict[str, Any] = {"targets": targets, "notes": notes_of(targets), "profile": profile}
    if request.param == "network":
        heads = HeadConfig("unifrac", (0.71, 0.13), counts=True, n_targets=1, n_classes=(3,))
        sizes = {"embedding_dim": 16, "attention_heads": 2, "max_bp": 30}
        saved = saved_model(model_of(heads, **sizes), heads, model=ModelConfig(**sizes), **more)
    else:
        covariates, studies = Covariates(), None
        if request.param == "two targets with covariates":
            scales, ranges = {"weight": Scale(0.5, 1.0)}, {"weight": (-2.0, 2.0)}
            covariates = Covariates({"diet": ("a", "b")}, scales, ranges)
            values["category"] = rng.integers(0, 3, (40, 1))
            values["covariate"] = rng.normal(size=(40, 1)).astype(np.float32)
        if request.param == "by study":
            studies = ["one" if row % 2 else "two" for row in range(40)]
            more["data"] = InputOptions(study_column="study")
        study = labelled(study, **values)
        samples = Samples.of_study(study, np.arange(40), covariates.levels)
        blend = fit_blend(study, targets, samples, studies=studies)
        keep_trees(blend, 3)
        saved = saved_model(covariates=covariates, blend=blend, **more)
    folder = tmp_path_factory.mktemp("models") / "model"
    save_model(folder, replace(saved, depth=study.depth, seed=study.seed))
    return study, folder


def predictions(study: Any, folder: Path) -> dict[str, np.ndarray]:
    """Values by target, of a model that is read from a folder."""
    saved = load_model(folder, CPU)
    studies = ["new"] * 40 if saved.data.study_column is not None else None
    table = predict_rows(saved, study, study.table.sample_ids, RuntimeConfig(), 1, studies=studies)
    return {spec.name: table.predicted(spec.name) for spec in table.specs}


# --- the edits -----------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all fields of JSON; of a list those of its first and last entry."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    if isinstance(value, list):
        for place in sorted({0, len(value) - 1} & {*range(len(value))}):
            yield from places(value[place], (*path, place))


def edited_fields(description: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Descriptions with one field that is replaced, removed, added, lengthened or reversed."""
    for path in places(description):
        *parents, last = path
        name = ".".join(map(str, path))
        before: Any = description
        for key in path:
            before = before[key]
        values = [*VALUES, [before], {"x": before}]
        if isinstance(before, list):
            values += [before * 2, before[::-1], before[:-1], [*before, None]]
        if isinstance(before, dict):
            values += [{**before, "added": 1}]
        for value in values:
            if value == before and type(value) is type(before):
                continue
            edited = copy.deepcopy(description)
            part: Any = edited
            for key in parents:
                part = part[key]
            part[last] = value
            yield f"{name} = {str(value)[:30]}", edited
        if isinstance(last, str):
            edited = copy.deepcopy(description)
            part = edited
            for key in parents:
                part = part[key]
            del part[last]
            yield f"without {name}", edited


def edited_arrays(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Arrays of a file with one that has another shape, type, order or number."""
    for name, values in arrays.items():
        changed = {
            "of no dimension": values.reshape(-1)[:1].reshape(()),
            "flat": values.reshape(-1),
            "empty": values[:0] if values.ndim else np.zeros(0, values.dtype),
            "shorter": values[:-1] if values.ndim else values,
            "longer": np.concatenate([values, values[:1]]) if values.ndim else values,
            "of truth values": values.astype(bool),
            "of bytes": values.astype(np.uint8),
            "of integers": values.astype(np.int64),
        }
        with np.errstate(over="ignore"):
            changed["of half precision"] = values.astype(np.float16)
        kind = np.iinfo if values.dtype.kind in "iu" else np.finfo
        limits = kind(values.dtype)
        numbers = [limits.max, limits.min]
        numbers += [np.nan, np.inf, -np.inf] if values.dtype.kind == "f" else [-1, 10**5]
        for number in numbers:
            for place in {0, values.size - 1} if values.size else ():
                if values.dtype.kind == "f" or limits.min <= number <= limits.max:
                    new = values.copy()
                    new.reshape(-1)[place] = number
                    changed[f"[{place}] = {number}"] = new
        for edit, new in changed.items():
            if (new.dtype, new.shape) != (values.dtype, values.shape) or not np.array_equal(
                new, values
            ):
                # safetensors writes the memory as it lies.
                yield f"{name} {edit}", {**arrays, name: np.array(new, order="C")}
        yield f"without {name}", {key: part for key, part in arrays.items() if key != name}
        yield f"twice {name}", {**arrays, f"{name}2": values}


def edits(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """What is edited, the file, and its new content."""
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    for edit, edited in edited_fields(description):
        yield edit, "model.json", edited
    for path in sorted(folder.glob("*.safetensors")):
        for edit, arrays in edited_arrays(safetensors.numpy.load_file(path)):
            yield edit, path.name, arrays


def check_edits(model: tuple[Any, Path], tmp_path: Path, start: int, step: int) -> int:
    """Apply every `step`-th edit; return how many were refused."""
    study, folder = model
    expected, wrong, refused = predictions(study, folder), [], 0
    assert all(np.isfinite(values).all() for values in expected.values())
    shutil.copytree(folder, tmp_path / "edited")
    for number, (edit, file, content) in enumerate(edits(folder)):
        if number % step != start:
            continue
        path = tmp_path / "edited" / file
        if file == "model.json":
            path.write_text(json.dumps(content), encoding="utf-8")
        else:
            safetensors.numpy.save_file(content, path)
        (path.parent / MANIFEST).unlink()
        write_manifest(path.parent)
        try:
            values = predictions(study, path.parent)
            same = (np.array_equal(values[name], old) for name, old in expected.items())
            if values.keys() != expected.keys() or not all(same):
                wrong.append(f"{file}: {edit}: other predictions")
        except InputError as error:
            refused += 1
            if str(path.parent) not in str(error):
                wrong.append(f"{file}: {edit}: {error}")
        except Exception as error:  # noqa: BLE001
            wrong.append(f"{file}: {edit}: {error!r:.200}")
        shutil.copyfile(folder / file, path)
    assert not wrong, "\n".join(wrong)
    return refused


def test_some_edits_of_each_model_are_refused_or_harmless(model, tmp_path):
    has_network = (model[1] / "weights.safetensors").exists()
    assert check_edits(model, tmp_path, 5, 499 if has_network else 97) > 5


@pytest.mark.slow
def test_every_edit_of_each_model_is_refused_or_harmless(model, tmp_path):
    assert check_edits(model, tmp_path, 0, 1) > 300
