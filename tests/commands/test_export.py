"""Exported models: the same outputs as the model, on odd batches and real samples, and what cannot
be exported.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from aam.config import CovariateConfig, ModelConfig
from aam.data.region import RegionProfile
from aam.data.targets import Covariates, Scale, Targets, TargetSpec
from aam.errors import InputError
from aam.model.heads import HeadConfig
from aam.predict.exported import (
    ODD_BATCHES,
    ExportedLearners,
    check_exportable,
    example_inputs,
    learner_outputs,
    output_names,
)
from aam.predict.saved_model import load_model, save_model
from tests.predict.samples import saved_model

MISSING = [
    name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None
]
needs_onnx = pytest.mark.skipif(
    bool(MISSING), reason=f"the extra onnx is not installed: {', '.join(MISSING)}"
)

ENCODER = HeadConfig()
TARGETS = Targets(
    (
        TargetSpec("age", "numeric", (), "log-zscore", Scale(2.0, 0.5), None, {}, (1.0, 40.0)),
        TargetSpec("site", "class", ("gut", "skin", "soil")),
    )
)


@pytest.fixture(scope="module")
def model(model_of, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with a number, a class, a categorical and a numeric covariate."""
    options = CovariateConfig(
        categorical_columns=("diet",), numeric_columns=("weight",), categorical_fusion="add"
    )
    heads = HeadConfig(n_targets=1, n_classes=(3,), levels=(4,), numbers=1, covariates=options)
    covariates = Covariates(
        {"diet": ("a", "b", "c")}, {"weight": Scale(60.0, 10.0)}, {"weight": (40.0, 90.0)}
    )
    network = model_of(heads)
    config = ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30)
    profile = RegionProfile.fit(["ACGT" * 7, "TTGA" * 7])
    notes = {"seen_samples": [], "labelled_samples": []}
    path = tmp_path_factory.mktemp("saved") / "model"
    more = {"model": config, "profile": profile, "notes": notes, "covariates": covariates}
    save_model(path, saved_model(network, heads, TARGETS, **more))
    return path


def export(model: Path, output: Path, *words: str) -> dict[str, object]:
    """Export in a process without the hook that checks types, which torch.export cannot trace."""
    command = [
        sys.executable,
        "-m",
        "aam",
        "export",
        "--model",
        str(model),
        "--output",
        str(output),
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return json.loads((output / "description.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch", pytest.param("onnx", marks=needs_onnx)])
def test_an_exported_model_gives_what_the_network_gives(model, tmp_path, form):
    about = export(model, tmp_path / "out", "--format", form)
    assert about["difference"] < 1e-5
    assert about["outputs"] == ["age", "site"]
    assert about["classes"] == {"site": ["gut", "skin", "soil"]}
    assert set(about["inputs"]) == {"tokens", "asv", "counts", "category", "covariate"}
    (tmp_path / "out" / "description.json").write_text("old")
    assert (
        export(model, tmp_path / "out", "--format", form, "--overwrite")["classes"]
        == about["classes"]
    )


@pytest.mark.slow
def test_a_disk_that_takes_no_more_ends_an_export_with_a_message(model, tmp_path):
    """The writer of torch ended the process by a signal."""
    command = [
        sys.executable,
        "-m",
        "aam",
        "export",
        "--model",
        str(model),
        "--output",
        str(tmp_path / "out"),
    ]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # noqa: E731
    done = subprocess.run(
        [*command, "--format", "torch"], capture_output=True, text=True, preexec_fn=limit
    )
    assert done.returncode == 1, done.stderr
    assert f"{tmp_path / 'out'}" in done.stderr.splitlines()[-1]
    assert "nothing was written half" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_onnx
def test_the_file_of_onnx_needs_neither_torch_nor_aam(model, tmp_path):
    about = export(model, tmp_path / "out", "--part", "encoder")
    source = f"""
import sys, numpy, onnx, onnxruntime
session = onnxruntime.InferenceSession({str(tmp_path / "out" / "model.onnx")!r})
tokens = numpy.full((7, 13), 2, numpy.uint8)
inputs = {{"tokens": tokens, "asv": numpy.zeros((5, 1), numpy.int64), "counts": numpy.ones((5, 1), numpy.float32)}}
samples, asvs = session.run(None, inputs)
print(samples.shape, asvs.shape, onnx.load({str(tmp_path / "out" / "model.onnx")!r}).opset_import[0].version)
assert "torch" not in sys.modules and "aam" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"(5, 16) (7, 16) {about['opset']}\n"


@pytest.fixture(scope="module")
def learners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated study and what `aam train` makes of it by default: a number and classes, from
    ASVs and covariates.
    """
    from aam.cli.main import main
    from aam.data.simulate import simulate

    folder = tmp_path_factory.mktemp("learners")
    study = folder / "study"
    simulate(study, samples=60, asvs=80, length=60, depth=600)
    files = ["--table", str(study / "table.biom"), "--metadata", str(study / "metadata.tsv")]
    columns = (
        "--metadata-column ph biome null --categorical-columns batch --rarefy-depth 300 "
        "--test-size 0.2 --threads 1"
    )
    assert main(["train", *files, *columns.split(), "--output-dir", str(folder / "run")]) == 0
    return folder


# Reads what was exported as a program without aam does, but for rarefied reads and encoded
# covariates, and predicts.
PREDICT = """
import sys, json, numpy, torch
from pathlib import Path
import aam
from aam.api.apply import load_models_and_table
from aam.config import PredictConfig
from aam.data.rarefaction import EVALUATION, rarefied_rows
from aam.predict.prediction import predict_samples, with_inputs

folder, exported = Path(sys.argv[1]), Path(sys.argv[2])
study_folder = folder / "study"
config = PredictConfig(model=(folder / "run" / "model",), table=study_folder / "table.biom",
                       metadata=study_folder / "metadata.tsv", prediction_passes=1)
(saved,), study, _ = load_models_and_table(config)
table = predict_samples([saved], study, 1, config.runtime)
study = with_inputs(saved, study)
kept = [at for at, name in enumerate(table.sample_ids) if name in study.table.row_of]
rows = study.rows([table.sample_ids[at] for at in kept])
reads = rarefied_rows(study, rows, EVALUATION - 1)
line = {name: at for at, name in enumerate((exported / "asvs.txt").read_text().split())}
slots = max(len(columns) for columns, _ in reads)
asv, counts = numpy.zeros((len(rows), slots), numpy.int64), numpy.zeros((len(rows), slots), numpy.float32)
for at, (columns, values) in enumerate(reads):
    asv[at, :len(columns)], counts[at, :len(columns)] = columns, values
inputs = {
    "tokens": study.tokens.numpy(), "asv": asv, "counts": counts,
    "place": numpy.array([line.get(name, -1) for name in study.table.sequences], numpy.int64),
    "category": study.labels.category[rows], "covariate": study.labels.covariate[rows],
}
about = json.loads((exported / "description.json").read_text())
if about["format"] == "onnx":
    import onnxruntime
    outputs = onnxruntime.InferenceSession(str(exported / "model.onnx")).run(None, inputs)
else:
    program = torch.export.load(exported / "model.pt2").module()
    outputs = [one.numpy() for one in program(**{name: torch.from_numpy(value) for name, value in inputs.items()})]
for name, values in zip(about["outputs"], outputs, strict=True):
    expected = (table.values[name] if name in table.values else table.probabilities[name])[kept]
    assert values.shape == expected.shape and len(values) > 40
    assert numpy.abs(values - expected).max() <= 1e-5 * max(1, numpy.abs(expected).max()), name
print("equal", *about["outputs"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch", pytest.param("onnx", marks=needs_onnx)])
def test_exported_learners_predict_as_aam_does_from_one_rarefaction(learners, tmp_path, form):
    about = export(learners / "run", tmp_path / "out", "--format", form)
    assert about["difference"] < 1e-5
    assert set(about["inputs"]) == {"tokens", "asv", "counts", "place", "category", "covariate"}
    command = [sys.executable, "-c", PREDICT, str(learners), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal", "ph", "null", "biome"]


@pytest.mark.slow
def test_the_functions_of_learners_are_the_learners(learners):
    saved = load_model(learners / "run" / "model", torch.device("cpu"))
    exported = ExportedLearners(saved)
    for seed, shape in enumerate(ODD_BATCHES):
        inputs = example_inputs(saved, "model", shape, seed)
        for value, expected in zip(exported(**inputs), learner_outputs(saved, inputs), strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def saved_like(reference: object = None, **changes: object) -> SimpleNamespace:
    network = SimpleNamespace(reference=reference)
    blend = SimpleNamespace(learners=[], network_weight=1.0)
    return SimpleNamespace(
        **{"targets": TARGETS, "blend": blend, "required_network": network, **changes}
    )


def test_what_cannot_be_exported_is_said():
    blend = SimpleNamespace(learners=["presence", "forest"], network_weight=0.1)
    with pytest.raises(
        InputError,
        match=r"its network with forest, presence, and.*--members deep or --members forest",
    ):
        check_exportable(saved_like(blend=blend), "model")
    check_exportable(
        saved_like(blend=SimpleNamespace(learners=["forest"], network_weight=0.0)), "model"
    )
    check_exportable(saved_like(blend=blend), "encoder")
    with pytest.raises(InputError, match="has no targets; pass --part encoder"):
        check_exportable(saved_like(targets=Targets(())), "model")
    with pytest.raises(InputError, match="it places ASVs on a reference tree"):
        check_exportable(saved_like(reference=object()), "encoder")


def test_outputs_are_named_as_the_model_gives_them():
    assert output_names(saved_like(), "model") == ["age", "site"]
    assert output_names(saved_like(), "encoder") == ["samples", "asvs"]


def test_a_missing_library_is_said_before_anything_is_written(model, tmp_path, capsys, monkeypatch):
    from aam.cli.main import main

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert main(["export", "--model", str(model), "--output", str(tmp_path / "out")]) == 2
    assert (
        "which is not installed: pip install 'attention-all-microbes[onnx]'"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())
    assert torch.is_grad_enabled()
