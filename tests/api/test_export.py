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

from aam.api.export import check_exportable, output_names
from aam.config import CovariateConfig, ModelConfig
from aam.data.region import RegionProfile
from aam.data.targets import Covariates, Scale, Targets, TargetSpec
from aam.errors import InputError
from aam.model.aam import HeadConfig
from aam.predict.saved_model import save_model
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
        TargetSpec("age", "numeric", (), "log-zscore", Scale(2.0, 0.5), (1.0, 40.0)),
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
    path = tmp_path_factory.mktemp("saved") / "model"
    more = {"model": config, "profile": profile, "covariates": covariates}
    save_model(path, saved_model(network, heads, TARGETS, **more))
    return path


def export(model: Path, output: Path, *words: str) -> dict[str, object]:
    """Export in a process without the hook that checks types, which torch.export cannot trace."""
    command = [sys.executable, *f"-m aam export --model {model} --output {output}".split(), *words]
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
    command = [sys.executable, *f"-m aam export --model {model} --output {tmp_path}/out".split()]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # noqa: E731
    done = subprocess.run(
        [*command, "--format", "torch"], capture_output=True, text=True, preexec_fn=limit
    )
    assert done.returncode == 1, done.stderr
    assert f"{tmp_path / 'out'}" in done.stderr.splitlines()[-1]
    assert "no partial files were left behind" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_onnx
def test_the_file_of_onnx_needs_neither_torch_nor_aam(model, tmp_path):
    about = export(model, tmp_path / "out")
    source = f"""
import sys, numpy, onnx, onnxruntime
session = onnxruntime.InferenceSession({str(tmp_path / "out" / "model.onnx")!r})
tokens = numpy.full((7, 13), 2, numpy.uint8)
inputs = {{"tokens": tokens, "asv": numpy.zeros((5, 1), numpy.int64), "counts": numpy.ones((5, 1), numpy.float32)}}
results = session.run(None, inputs)
print([len(each) for each in results], onnx.load({str(tmp_path / "out" / "model.onnx")!r}).opset_import[0].version)
assert "torch" not in sys.modules and "aam" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"[5, 5] {about['opset']}\n"


def saved_like(reference: object = None, **changes: object) -> SimpleNamespace:
    network = SimpleNamespace(reference=reference)
    return SimpleNamespace(
        **{"targets": TARGETS, "members": (), "require_network": lambda: network, **changes}
    )


def test_what_cannot_be_exported_is_said(caplog):
    check_exportable(saved_like(members=("presence", "forest")))
    assert "only the network is exported; 'presence', 'forest'" in caplog.text
    with pytest.raises(InputError, match="it places ASVs on a reference, which cannot"):
        check_exportable(saved_like(reference=object()))


def test_outputs_are_named_as_the_model_gives_them():
    assert output_names(saved_like()) == ["age", "site"]
    assert output_names(saved_like(targets=Targets(()))) == ["samples", "asvs"]


def test_a_missing_library_is_said_before_anything_is_written(model, tmp_path, capsys, monkeypatch):
    from aam.cli import main

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert main(["export", "--model", str(model), "--output", str(tmp_path / "out")]) == 2
    assert (
        "which is not installed: pip install 'attention-all-microbes[onnx]'"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())
    assert torch.is_grad_enabled()
