"""`aam export`: a trained network for programs without aam, as ONNX or as a program of torch.export."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import aam
from aam.config_commands import ExportConfig
from aam.contradictions import check_command
from aam.data.tokens import MASK, PAD, A, C, G, N, T
from aam.device.attention import use_backends
from aam.engine.run import describe
from aam.errors import InputError, RunError, import_extra
from aam.files.output_folder import RUN, OutputFolder
from aam.options import files_read, given, to_dict
from aam.predict.exported import (
    AXES,
    ODD_BATCHES,
    ExportedEncoder,
    ExportedModel,
    check_exportable,
    example_inputs,
    network_outputs,
    output_names,
)
from aam.predict.saved_model import SavedModel, load_models

log = logging.getLogger("aam")

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}

# The operator set of ONNX 1.15, of November 2023: what current run times read.
OPSET = 20

# Largest difference from the network, as a share of the largest value of an output.
TOLERANCE = 1e-5

Run = Callable[[dict[str, Tensor]], list[Tensor]]


def export_model(config: ExportConfig) -> None:
    """Write the folder of an exported model, after it gave on odd batches what the network gives.

    Raises
    ------
    InputError
        Bad options, no model or several, what no graph of tensors can hold, or a library that is not installed.
    RunError
        What was written differs from the network.
    """
    check_command(config)
    files, outputs = files_read(config), [RUN, FILES[config.format], "description.json"]
    folder_of_results = OutputFolder(given(config.output), "export", outputs, [*files.values()], config.overwrite)
    folder_of_results.check()
    models = load_models([given(config.model)], torch.device("cpu"))
    if len(models) > 1:
        raise InputError(f"--model: {len(models)} models, which are exported one by one; name one of them")
    (saved,) = models
    part = config.part or ("model" if saved.targets.specs else "encoder")
    check_exportable(saved, part)
    # torch chooses the attention: the back ends of this machine are no part of a model.
    use_backends({})
    module = (ExportedModel(saved) if part == "model" else ExportedEncoder(saved.required_network)).eval()
    output, about = given(config.output), describe("export", to_dict(config), files, {})
    with folder_of_results.replaced(about) as folder, torch.no_grad(), _without_remarks():
        run = (_write_onnx if config.format == "onnx" else _write_torch)(module, saved, part, folder)
        difference = max(_difference(run, saved, part, seed) for seed in range(len(ODD_BATCHES)))
        if not difference <= TOLERANCE:
            raise RunError(f"{output}: differs from the network by {difference:.2g} of its values; nothing was written")
        text = json.dumps(_description(saved, part, config.format, difference), indent=1)
        (folder / "description.json").write_text(text + "\n", encoding="utf-8")
    log.info("%s: %s, within %.1g of the network on odd batches", output, FILES[config.format], difference)


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Leave out what torch.export and its ONNX exporter say about themselves."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def _program(module: torch.nn.Module, inputs: dict[str, Tensor]) -> torch.export.ExportedProgram:
    """Return the program of a module whose batch sizes are free."""
    dimensions = dict.fromkeys("ULBS", torch.export.Dim.DYNAMIC)
    shapes = {name: {at: dimensions[axis] for at, axis in enumerate(AXES[name])} for name in inputs}
    return torch.export.export(module, (), kwargs=inputs, dynamic_shapes=shapes, strict=False)


def _write_onnx(module: torch.nn.Module, saved: SavedModel, part: str, folder: Path) -> Run:
    import_extra("onnxscript", "onnx", "aam export --format onnx")
    runtime = import_extra("onnxruntime", "onnx", "aam export --format onnx")
    inputs = example_inputs(saved, part, ODD_BATCHES[0], 0)
    path, names = folder / FILES["onnx"], output_names(saved, part)
    torch.onnx.export(
        _program(module, inputs), (), str(path), input_names=list(inputs), output_names=names, opset_version=OPSET,
        external_data=False, dynamo=True, verbose=False,
    )  # fmt: skip
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(values: dict[str, Tensor]) -> list[Tensor]:
        outputs: list[Any] = session.run(names, {name: value.numpy() for name, value in values.items()})
        return [torch.from_numpy(value) for value in outputs]

    return run


def _write_torch(module: torch.nn.Module, saved: SavedModel, part: str, folder: Path) -> Run:
    path = folder / FILES["torch"]
    torch.export.save(_program(module, example_inputs(saved, part, ODD_BATCHES[0], 0)), path)
    loaded = torch.export.load(path).module()
    return lambda values: list(loaded(**values))


def _difference(run: Run, saved: SavedModel, part: str, seed: int) -> float:
    """Return the largest difference between the network and what was written on one of the odd batches."""
    inputs = example_inputs(saved, part, ODD_BATCHES[seed], seed)
    differences = []
    for expected, value in zip(network_outputs(saved, part, inputs), run(inputs), strict=True):
        if expected.shape != value.shape:
            raise RunError(f"an output has shape {tuple(value.shape)}, expected {tuple(expected.shape)}")
        scale = max(1.0, float(expected.abs().max()))
        differences.append(float((expected - value).abs().max()) / scale)
    return max(differences)


def _description(saved: SavedModel, part: str, form: str, difference: float) -> dict[str, Any]:
    """Return what a program needs to make the inputs and to read the outputs."""
    tokens = {"padding": PAD, "A": A, "C": C, "G": G, "T": T, "other nucleotides": N, "masked": MASK}
    inputs = {
        "tokens": "uint8 [U, L]: the distinct ASVs of the batch, each padded at its end",
        "asv": "int64 [B, S]: which of them each ASV of each sample is; 0 where counts is 0",
        "counts": "float32 [B, S]: reads, rarefied to the depth; 0 in empty slots, which follow all others",
    }
    about: dict[str, Any] = {
        "format": form,
        "file": FILES[form],
        "part": part,
        "inputs": inputs,
        "outputs": output_names(saved, part),
        "tokens": tokens,
        "depth": saved.depth,
        "longest ASV": saved.model.positions,
        "token limit": saved.data.token_limit,
        "difference": difference,
        "versions": {"aam": aam.__version__, "torch": torch.__version__},
    }
    if form == "onnx":
        about["opset"] = OPSET
    if part == "model":
        about["classes"] = {spec.name: list(spec.labels) for spec in saved.targets.classes}
        about["quantiles"] = {spec.name: list(spec.quantiles) for spec in saved.targets.numeric if spec.quantiles}
    if part == "model" and saved.covariates.columns:
        inputs["category"] = "int64 [B, C]: of each categorical covariate 1 + place of its category, 0 where unknown"
        inputs["covariate"] = "float32 [B, N]: of each numeric covariate (value - center) / spread, NaN where missing"
        about["covariates"] = saved.covariates.to_json()
    return about
