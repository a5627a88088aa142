"""`aam export`: a trained model for programs without aam, as ONNX or as a program of
torch.export.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aam
from aam.api.apply import output_of, written
from aam.config import ExportConfig
from aam.data.batch import Batch
from aam.data.tokens import MASK, PAD, A, C, G, N, T
from aam.device.attention import use_backends
from aam.errors import InputError, RunError, import_extra, shown
from aam.model.layers import OnShelves
from aam.model.sample import Slots
from aam.options import not_none
from aam.predict.saved_model import SavedModel, load_models

log = logging.getLogger("aam")

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}

# The operator set of ONNX 1.15, of November 2023: what current run times read.
OPSET = 20

# Largest difference from the network, as a share of the largest value of an output.
TOLERANCE = 1e-5

Run = Callable[[dict[str, Tensor]], list[Tensor]]

# U distinct ASVs, B samples and S ASVs of a sample are free; L may be shorter than the longest ASV
# of the model.
AXES = {
    "tokens": ("U", "L"),
    "asv": ("B", "S"),
    "counts": ("B", "S"),
    "category": ("B",),
    "covariate": ("B",),
}

# Samples, ASVs of a sample, distinct ASVs, and how many bases shorter than the longest: one of
# each, odd, larger.
ODD_BATCHES = ((2, 3, 5, 0), (1, 1, 1, 0), (3, 7, 11, 3), (17, 33, 41, 1))


class ExportedNetwork(nn.Module):
    """A network as a function of tensors: one output for each name of `output_names`.

    It reads tokens uint8 ``[U, L]``, indices int64 ``[B, S]``, reads float32 ``[B, S]`` and, with
    heads, covariates.
    """

    def __init__(self, saved: SavedModel, part: str) -> None:
        super().__init__()
        self.network = saved.required_network
        self.length = self.network.asv.position.shape[0] * self.network.asv.patch
        self.specs = saved.targets.numeric
        self.with_heads = part == "model"

    def forward(
        self,
        tokens: Tensor,
        asv: Tensor,
        counts: Tensor,
        category: Tensor | None = None,
        covariate: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Vectors of samples ``[B, D]`` and ASVs ``[U, D]``, or numbers ``[B]`` in their own units
        and probabilities ``[B, K]``.
        """
        network = self.network
        # Padded to the length of the model, positions are the same number for every batch.
        full = F.pad(tokens, (0, self.length - tokens.shape[1]), value=PAD)
        _, asvs = network.asv(full, True)
        samples, size = asv.shape
        row = torch.arange(samples, device=asv.device)[:, None].expand(samples, size).flatten()
        on = OnShelves(((samples, size),), counts.flatten() > 0)
        slots = Slots(asv.flatten(), row, counts.flatten(), on)
        read = network.sample(asvs, slots)[1] + network.sample.contents(asvs, slots)
        if not self.with_heads:
            return read, asvs
        if network.covariates is not None:
            batch = Batch(tokens, asv, counts, category=category, covariate=covariate)
            read = network.covariates(read, batch)
        outputs = []
        if network.target is not None:
            for spec, values in zip(self.specs, network.target(read).unbind(dim=1), strict=True):
                scaled = values * spec.scale.spread + spec.scale.center
                is_log = spec.transform.startswith("log-")
                outputs.append(torch.expm1(scaled) if is_log else scaled)
        return (*outputs, *(torch.softmax(head(read), dim=-1) for head in network.labels))


def check_exportable(saved: SavedModel, part: str) -> None:
    """Raise `InputError` for what a graph of tensors cannot hold; say what is left out."""
    if saved.required_network.reference is not None:
        raise InputError("--model: it places ASVs on a reference, which cannot be exported")
    if part == "model" and not saved.targets.specs:
        raise InputError("--model: a pretrained encoder has no targets")
    if part == "model" and saved.members:
        log.warning(
            "warning: only the network is exported; %s, which predict with it in aam, are left out",
            shown(saved.members),
        )


def output_names(saved: SavedModel, part: str) -> list[str]:
    """Names of what is computed, in its order."""
    if part == "encoder":
        return ["samples", "asvs"]
    return [spec.name for spec in (*saved.targets.numeric, *saved.targets.classes)]


def network_outputs(saved: SavedModel, part: str, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Outputs of the network itself, decoded like predictions."""
    sizes = tuple((inputs["counts"] > 0).sum(dim=1).tolist())
    if part == "encoder" and saved.covariates.columns:
        # They change what target heads read, and no vector; the network asks for them all the same.
        category = torch.zeros(len(sizes), len(saved.covariates.categorical), dtype=torch.int64)
        covariate = torch.full((len(sizes), len(saved.covariates.numeric)), torch.nan)
        inputs = {**inputs, "category": category, "covariate": covariate}
    outputs = saved.required_network(Batch(**inputs, sizes=sizes, padded=True))  # type: ignore[arg-type]
    if part == "encoder":
        return [outputs.samples, outputs.asvs]
    numbers: Any = ()
    if outputs.target is not None:
        numbers = saved.targets.decode(outputs.target.numpy()).T
    probabilities = (torch.softmax(logits, dim=-1) for logits in outputs.labels)
    return [*map(torch.from_numpy, numbers), *probabilities]


def example_inputs(
    saved: SavedModel, part: str, shape: Sequence[int], seed: int
) -> dict[str, Tensor]:
    """Return random inputs for ``(B, S, U, shorter)``: samples, slots, ASVs, and bases below the
    longest ASV.

    Each sample but the longest has empty slots; the second half of the ASVs is shorter than L.
    """
    samples, slots, asvs, shorter = shape
    random = torch.Generator().manual_seed(seed)
    length = max(1, saved.model.positions - shorter)
    tokens = torch.randint(A, T + 1, (asvs, length), generator=random, dtype=torch.uint8)
    tokens[(asvs + 1) // 2 :, max(1, length // 2) :] = PAD
    counts = torch.randint(1, saved.depth + 1, (samples, slots), generator=random).float()
    for row in range(1, samples):
        counts[row, max(1, slots - row) :] = 0
    asv = torch.rand(samples, asvs, generator=random).argsort(dim=1)[:, :slots]
    inputs = {"tokens": tokens, "asv": asv.masked_fill(counts == 0, 0), "counts": counts}
    if part == "model" and saved.covariates.columns:
        levels = [1 + len(names) for names in saved.covariates.categorical.values()]
        drawn = [torch.randint(0, size, (samples,), generator=random) for size in levels]
        inputs["category"] = (
            torch.stack(drawn, dim=1) if drawn else torch.zeros(samples, 0, dtype=torch.int64)
        )
        inputs["covariate"] = torch.randn(samples, len(saved.covariates.numeric), generator=random)
        inputs["covariate"][0] = torch.nan
    return inputs


def write_exported(saved: SavedModel, part: str, form: str, folder: Path) -> float:
    """Write an exported model and its description; return its largest relative difference.

    Raises
    ------
    InputError
        A library is not installed.
    RunError
        What was written differs from the model on an odd batch by more than `TOLERANCE` of its
        values.
    """
    # torch chooses the attention: the back ends of this machine are no part of a model.
    use_backends({})
    names = output_names(saved, part)
    inputs = [example_inputs(saved, part, shape, seed) for seed, shape in enumerate(ODD_BATCHES)]
    with torch.no_grad(), _without_remarks():
        program = _program(ExportedNetwork(saved, part).eval(), inputs[0])
        write = _write_onnx if form == "onnx" else _write_torch
        run = write(program, [*inputs[0]], names, folder / FILES[form])
        differences = [
            _difference(network_outputs(saved, part, values), run(values)) for values in inputs
        ]
    if not (difference := max(differences)) <= TOLERANCE:
        raise RunError(
            f"the exported model differs from the original by {difference:.2g} of its values; it "
            "was removed"
        )
    text = json.dumps(_description(saved, part, form, difference), indent=1)
    (folder / "description.json").write_text(text + "\n", encoding="utf-8")
    return difference


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
    """The program of a module whose batch sizes are free."""
    dimensions = dict.fromkeys("ULBS", torch.export.Dim.DYNAMIC)
    shapes = {name: {at: dimensions[axis] for at, axis in enumerate(AXES[name])} for name in inputs}
    return torch.export.export(module, (), kwargs=inputs, dynamic_shapes=shapes, strict=False)


def _write_onnx(program: Any, inputs: list[str], names: list[str], path: Path) -> Run:
    import_extra("onnxscript", "onnx", "aam export --format onnx")
    runtime = import_extra("onnxruntime", "onnx", "aam export --format onnx")
    torch.onnx.export(
        program,
        (),
        str(path),
        input_names=inputs,
        output_names=names,
        opset_version=OPSET,
        external_data=False,
        dynamo=True,
        verbose=False,
    )
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(values: dict[str, Tensor]) -> list[Tensor]:
        arrays = {name: value.numpy() for name, value in values.items()}
        return [torch.from_numpy(value) for value in session.run(names, arrays)]

    return run


def _write_torch(program: Any, inputs: list[str], names: list[str], path: Path) -> Run:
    content = io.BytesIO()
    torch.export.save(program, content)
    # On a full disk torch's own writer ends the process.
    path.write_bytes(content.getbuffer())
    loaded = torch.export.load(path).module()
    return lambda values: list(loaded(**values))


def _difference(expected: Sequence[Tensor], written: Sequence[Tensor]) -> float:
    """The largest difference of outputs, as a share of the largest value of each."""
    differences = []
    for ours, value in zip(expected, written, strict=True):
        if ours.shape != value.shape:
            raise RunError(
                f"an output has shape {tuple(value.shape)}, expected {tuple(ours.shape)}"
            )
        scale = max(1.0, float(ours.abs().max()))
        differences.append(float((ours - value).abs().max()) / scale)
    return max(differences)


def _description(saved: SavedModel, part: str, form: str, difference: float) -> dict[str, Any]:
    """Description of inputs and outputs for other programs."""
    letters = {"A": A, "C": C, "G": G, "T": T}
    tokens = {"padding": PAD, **letters, "other nucleotides": N, "masked": MASK}
    inputs = {
        "tokens": "uint8 [U, L]: the distinct ASVs of the batch, each padded at its end",
        "asv": "int64 [B, S]: which of them each ASV of each sample is; 0 where counts is 0",
        "counts": (
            "float32 [B, S]: reads, rarefied to the depth; 0 in empty slots, which follow "
            "all others"
        ),
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
    if part == "model" and saved.covariates.columns:
        inputs["category"] = (
            "int64 [B, C]: of each categorical covariate 1 + place of its category, 0 where unknown"
        )
        inputs["covariate"] = (
            "float32 [B, N]: of each numeric covariate (value - center) / spread, NaN where missing"
        )
        about["covariates"] = saved.covariates.to_json()
    return about


def export_model(config: ExportConfig) -> None:
    """Write the folder of an exported model, after it gave on odd batches what the model gives.

    Raises
    ------
    InputError
        Bad options, no model or several, what no graph of tensors can hold, or a library that is
        not installed.
    RunError
        What was written differs from the model.
    """
    files = [FILES[config.format], "description.json"]
    output = output_of("export", config, files, not_none(config.output))
    models = load_models([not_none(config.model)], torch.device("cpu"))
    if len(models) > 1:
        raise InputError(
            f"--model: {len(models)} models, which are exported one by one; name one of them"
        )
    (saved,) = models
    part = "model" if saved.targets.specs else "encoder"
    check_exportable(saved, part)
    with written(output, config) as folder:
        difference = write_exported(saved, part, config.format, folder)
    name, text = FILES[config.format], "%s: %s, within %.1g of the model on odd batches"
    log.info(text, config.output, name, difference)
