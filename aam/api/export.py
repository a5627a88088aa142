"""`aam export`: a trained network as one function of tensors, as ONNX or as a program of
torch.export, compared with it on odd batches.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
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
from aam.model.layers import SequenceBins
from aam.model.sample import Slots
from aam.options import not_none, to_dict
from aam.predict.blend import specs_in_order
from aam.predict.saved_model import SavedModel, load_models

log = logging.getLogger("aam")

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}

# The operator set of ONNX 1.15, of November 2023: what current run times read.
OPSET = 20

# Largest difference from the network, as a share of the largest value of an output.
EXPORT_TOLERANCE = 1e-5

# U distinct ASVs, B samples and S ASVs of a sample are free; L may be shorter than the longest ASV
# of the model.
AXES = {"tokens": "UL", "asv": "BS", "counts": "BS", "category": "B", "covariate": "B"}

# Meaning of the inputs, for other programs.
INPUTS = {
    "tokens": "uint8 [U, L]: the distinct ASVs of the batch, each padded at its end",
    "asv": "int64 [B, S]: which of them each ASV of each sample is; 0 where counts is 0",
    "counts": "float32 [B, S]: reads, rarefied to the depth; 0 in empty slots, which are the last",
    "category": "int64 [B, C]: 1 + place of the category of each covariate, 0 where unknown",
    "covariate": "float32 [B, N]: (value - center) / spread of each number, NaN where missing",
}

# Samples, ASVs of a sample, distinct ASVs, and how many bases shorter than the longest: one of
# each, odd, larger.
ODD_BATCHES = ((2, 3, 5, 0), (1, 1, 1, 0), (3, 7, 11, 3), (17, 33, 41, 1))

Inputs = dict[str, Tensor]


class ExportedNetwork(nn.Module):
    """A network as a function of tensors: an output for each name of `output_names`.

    It reads `INPUTS`, covariates if it has heads.
    """

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        self.network, self.targets = saved.require_network(), saved.targets
        self.length = self.network.asv.position.shape[0] * self.network.asv.patch

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
        network, (samples, size) = self.network, asv.shape
        # Padded to the length of the model, positions are the same number for every batch.
        full = F.pad(tokens, (0, self.length - tokens.shape[1]), value=PAD)
        _, asvs = network.asv(full, True)
        row = torch.arange(samples, device=asv.device)[:, None].expand(samples, size).flatten()
        bins = SequenceBins(((samples, size),), counts.flatten() > 0)
        slots = Slots(asv.flatten(), row, counts.flatten(), bins)
        read = network.sample(asvs, slots)[1] + network.sample.contents(asvs, slots)
        if not self.targets.specs:
            return read, asvs
        if network.covariates is not None:
            batch = Batch(tokens, asv, counts, category=category, covariate=covariate)
            read = network.covariates(read, batch)
        columns = [] if network.target is None else network.target(read).unbind(dim=1)
        outputs = []
        for spec, values in zip(self.targets.numeric, columns, strict=True):
            scaled = values * spec.scale.spread + spec.scale.center
            outputs.append(torch.expm1(scaled) if spec.transform.startswith("log-") else scaled)
        return (*outputs, *(torch.softmax(head(read), dim=-1) for head in network.labels))


def export_model(config: ExportConfig) -> None:
    """Write the folder of an exported model, after it gave on odd batches what the model gives.

    Raises
    ------
    InputError
        Bad options, no model, what no graph of tensors can hold, or a library that is not
        installed.
    RunError
        What was written differs from the model.
    """
    files = [FILES[config.format], "description.json"]
    output = output_of("export", config, files)
    (saved,) = load_models([not_none(config.model)], torch.device("cpu"))
    check_exportable(saved)
    with written(output, config) as folder:
        difference = write_exported(saved, config.format, folder)
    text = "%s: %s, within %.1g of the model on odd batches"
    log.info(text, config.output, FILES[config.format], difference)


def check_exportable(saved: SavedModel) -> None:
    """Raise `InputError` for what a graph of tensors cannot hold; say what is left out."""
    if saved.require_network().reference is not None:
        raise InputError("--model: it places ASVs on a reference, which cannot be exported")
    if saved.members:
        left_out = f"only the network is exported; {shown(saved.members)}"
        log.warning("warning: %s, which predict with it in aam, are left out", left_out)


def output_names(saved: SavedModel) -> list[str]:
    """Names of what is computed, in its order."""
    return [spec.name for spec in specs_in_order(saved.targets)] or ["samples", "asvs"]


def network_outputs(saved: SavedModel, inputs: Inputs) -> list[Tensor]:
    """Outputs of the network itself, decoded like predictions."""
    sizes = tuple((inputs["counts"] > 0).sum(dim=1).tolist())
    batch = Batch(**inputs, sizes=sizes, has_short_asvs=True)  # type: ignore[arg-type]
    outputs = saved.require_network()(batch)
    if not saved.targets.specs:
        return [outputs.samples, outputs.asvs]
    numbers: Any = ()
    if outputs.target is not None:
        numbers = saved.targets.decode(outputs.target.numpy()).T
    probabilities = (torch.softmax(logits, dim=-1) for logits in outputs.labels)
    return [*map(torch.from_numpy, numbers), *probabilities]


def example_inputs(saved: SavedModel, shape: Sequence[int], seed: int) -> Inputs:
    """Random inputs of a shape of `ODD_BATCHES`.

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
    if saved.covariates.columns:
        category = torch.rand(samples, len(saved.covariates.levels), generator=random)
        inputs["category"] = (category * (1 + torch.tensor(saved.covariates.levels))).long()
        numbers = torch.randn(samples, len(saved.covariates.numeric), generator=random)
        numbers[0] = torch.nan
        inputs["covariate"] = numbers
    return inputs


def write_exported(saved: SavedModel, form: str, folder: Path) -> float:
    """Write an exported model and its description; return its largest relative difference.

    Raises
    ------
    InputError
        A library is not installed.
    RunError
        What was written differs from the model on an odd batch by more than `EXPORT_TOLERANCE` of
        its values.
    """
    # torch chooses the attention: the back ends of this machine are no part of a model.
    use_backends({})
    inputs = [example_inputs(saved, shape, seed) for seed, shape in enumerate(ODD_BATCHES)]
    free, differences = dict.fromkeys("ULBS", torch.export.Dim.DYNAMIC), [0.0]
    shapes = {name: {at: free[axis] for at, axis in enumerate(AXES[name])} for name in inputs[0]}
    write = _write_onnx if form == "onnx" else _write_torch
    for library in ("torch.onnx", "onnx_ir"):
        logging.getLogger(library).setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = ExportedNetwork(saved).eval()
        program = torch.export.export(network, (), inputs[0], dynamic_shapes=shapes, strict=False)
        run = write(program, [*inputs[0]], output_names(saved), folder / FILES[form])
        for values in inputs:
            for ours, exported in zip(network_outputs(saved, values), run(values), strict=True):
                scale = max(1.0, float(ours.abs().max()))
                is_like = ours.shape == exported.shape
                differences.append(float((ours - exported).abs().max()) / scale if is_like else 1.0)
    if not (difference := max(differences)) <= EXPORT_TOLERANCE:
        problem = f"the exported model differs from the original by {difference:.2g} of its values"
        raise RunError(f"{problem}; it was removed")
    opset = {"opset": OPSET} if form == "onnx" else {}
    description = {"format": form, "file": FILES[form], "difference": difference, **opset}
    description |= {
        "inputs": {name: INPUTS[name] for name in inputs[0]},
        "outputs": output_names(saved),
    }
    tokens = {"padding": PAD, "A": A, "C": C, "G": G, "T": T, "other nucleotides": N}
    description |= {"tokens": {**tokens, "masked": MASK}, "depth": saved.depth}
    description |= {"longest ASV": saved.model.positions, "token limit": saved.data.token_limit}
    description["classes"] = {spec.name: list(spec.labels) for spec in saved.targets.classes}
    description["covariates"] = to_dict(saved.covariates)
    description["versions"] = {"aam": aam.__version__, "torch": torch.__version__}
    text = json.dumps(description, indent=1)
    (folder / "description.json").write_text(text + "\n", encoding="utf-8")
    return difference


def _write_onnx(
    program: Any, inputs: list[str], names: list[str], path: Path
) -> Callable[[Inputs], list[Tensor]]:
    import_extra("onnxscript", "onnx", "aam export --format onnx")
    runtime = import_extra("onnxruntime", "onnx", "aam export --format onnx")
    export_options: dict[str, Any] = {"external_data": False, "dynamo": True, "verbose": False}
    export_options |= {"input_names": inputs, "output_names": names, "opset_version": OPSET}
    torch.onnx.export(program, (), str(path), **export_options)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(values: Inputs) -> list[Tensor]:
        arrays = {name: value.numpy() for name, value in values.items()}
        return [torch.from_numpy(value) for value in session.run(names, arrays)]

    return run


def _write_torch(
    program: Any, inputs: list[str], names: list[str], path: Path
) -> Callable[[Inputs], list[Tensor]]:
    content = io.BytesIO()
    torch.export.save(program, content)
    # On a full disk torch's own writer ends the process.
    path.write_bytes(content.getbuffer())
    loaded = torch.export.load(path).module()
    return lambda values: list(loaded(**values))
