"""A trained model as one function of tensors: written by torch.export or as ONNX, compared with it
on odd batches.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor, nn

import aam
from aam.data.batch import Batch
from aam.data.targets import TargetSpec
from aam.data.tokens import MASK, PAD, A, C, G, K, N, T, kmer_words
from aam.device.attention import use_backends
from aam.device.rng import splitmix64
from aam.errors import InputError, RunError, import_extra
from aam.model.aam import Aam
from aam.predict.blend import TargetBlend, specs_in_order
from aam.predict.features import BUCKETS, Inputs, Matrix, Product, as_sequences, kmer_sketch
from aam.predict.forest import Forest, Trees
from aam.predict.linear import SMALLEST, Linear
from aam.predict.saved_model import SavedModel

# --- learners -----------------------------------------------------------------------------------

# Names of features, and what the graph computes of each: presence [B, V], sums of sketches by ASV,
# covariates [B, P].
Features = Mapping[str, Any]


def _double(values: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float64).copy())


class ExportedLinear(nn.Module):
    """A `Linear` learner: its features to numbers ``[B, 1]`` or probabilities ``[B, K]``."""

    intercept: Tensor
    base_rates: Tensor
    place: Tensor
    rising: Tensor

    def __init__(self, learner: Linear) -> None:
        super().__init__()
        # Two empty buffers cannot be written by torch.export: without covariates there are no
        # weights of them.
        weights = {name: one for name, one in learner.coef_.items() if one.size}
        self.names, self.classes = tuple(weights), learner.n_classes
        for name, one in weights.items():
            self.register_buffer(f"weights_{name}", _double(one))
        self.register_buffer("intercept", _double(learner.intercept_))
        if self.classes:
            # More classes than two know their base rates already.
            self.register_buffer(
                "base_rates", _double(learner.base_rates_ if self.classes == 2 else np.ones(1))
            )
            return
        self.low, self.high = learner.range_
        middles = (learner.thresholds_ + np.append(learner.thresholds_[1:], self.high)) / 2
        place = np.concatenate([[self.low - (middles[0] - self.low) / 2], middles, [self.high]])
        self.register_buffer("place", _double(place))
        self.register_buffer("rising", _double(np.arange(len(place)) * 1e-9))

    def forward(self, features: Features) -> Tensor:
        """Return what `Linear.outputs` returns."""
        total = self.intercept
        for name in self.names:
            weights = getattr(self, f"weights_{name}")
            total = total + (
                features[name](weights) if name == "kmers" else features[name] @ weights
            )
        return self._shares(total) if self.classes else self._median(total)

    def _shares(self, scores: Tensor) -> Tensor:
        """Return scores of classes as probabilities, as `Linear.published` does."""
        shares = scores.clamp(SMALLEST, 1)
        shares = shares / shares.sum(dim=1, keepdim=True) * self.base_rates
        return shares / shares.sum(dim=1, keepdim=True)

    def _median(self, distribution: Tensor) -> Tensor:
        """Return the median of predicted distributions ``[B, q]``, as `Thresholds.quantile`
        does.
        """
        number = distribution.shape[1]
        before = torch.ones(number, number, dtype=torch.bool).tril()
        repeated = distribution[:, None, :]
        rising = repeated.masked_fill(~before, -torch.inf).amax(dim=2)
        falling = repeated.masked_fill(~before.T, torch.inf).amin(dim=2)
        steps = ((rising + falling) / 2).clamp(0, 1)
        ends = torch.zeros_like(steps[:, :1])
        steps = torch.cat([ends, steps, ends + 1], dim=1) + self.rising
        at = ((steps <= 0.5).sum(dim=1, keepdim=True) - 1).clamp(0, number)
        low, high = steps.gather(1, at), steps.gather(1, at + 1)
        share = (0.5 - low) / (high - low)
        return (self.place[at] + share * (self.place[at + 1] - self.place[at])).clamp(
            self.low, self.high
        )


def _depth(trees: Trees) -> int:
    """Return the number of comparisons from a root to the deepest leaf."""
    nodes, depth = np.unique(trees.root), 0
    while len(nodes := nodes[trees.left[nodes] != nodes]):
        nodes, depth = np.concatenate([trees.left[nodes], trees.right[nodes]]), depth + 1
    return depth


class ExportedForest(nn.Module):
    """A `Forest`: its features to numbers ``[B, 1]`` or probabilities ``[B, K]``."""

    root: Tensor
    left: Tensor
    right: Tensor
    feature: Tensor
    threshold: Tensor
    value: Tensor

    def __init__(self, learner: Forest) -> None:
        super().__init__()
        trees = Trees(**learner.trees_)
        self.names, self.classes, self.median = learner.reads, learner.n_classes, learner.median
        self.depth = _depth(trees)
        for name in ("root", "left", "right", "feature"):
            self.register_buffer(name, torch.from_numpy(getattr(trees, name).astype(np.int64)))
        self.register_buffer("threshold", _double(trees.threshold))
        self.register_buffer("value", _double(trees.value))

    def forward(self, features: Features) -> Tensor:
        """Return what `Forest.outputs` returns."""
        # Trees were grown on float32.
        values = torch.cat([features[name] for name in self.names], dim=1).float().double()
        node = self.root.expand(values.shape[0], -1)
        for _ in range(self.depth):
            goes_left = values.gather(1, self.feature[node]) <= self.threshold[node]
            node = torch.where(goes_left, self.left[node], self.right[node])
        said = self.value[node]
        if self.classes or not self.median:
            return said.mean(dim=1)
        ordered, trees = said[:, :, 0].sort(dim=1).values, said.shape[1]
        return (ordered[:, (trees - 1) // 2] + ordered[:, trees // 2])[:, None] / 2


class ExportedLearners(nn.Module):
    """All learners of a model, blended, with targets in their own units: numbers ``[B]``,
    probabilities ``[B, K]``.
    """

    bucket: Tensor
    sign: Tensor

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        self.targets, self.fitted = saved.targets, saved.blend.fitted
        kinds = {Linear: ExportedLinear, Forest: ExportedForest}
        self.learners = nn.ModuleList(
            nn.ModuleDict({name: kinds[type(one)](one) for name, one in target.learners.items()})
            for target in self.fitted
        )
        self.known, self.covariates = known_asvs(saved), saved.blend.features.get("covariates")
        hashed = splitmix64(torch.arange(1, 4**K + 1)).numpy()
        # The last is of words with N.
        self.register_buffer("bucket", torch.from_numpy(np.append(hashed & (BUCKETS - 1), 0)))
        self.register_buffer("sign", _double(np.append(np.where(hashed & BUCKETS, 1.0, -1.0), 0.0)))

    def forward(
        self,
        tokens: Tensor,
        asv: Tensor,
        counts: Tensor,
        place: Tensor,
        category: Tensor | None = None,
        covariate: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return one tensor for each target, numbers first."""
        present = (counts > 0).double()
        at = torch.where((counts > 0) & (place[asv] >= 0), place[asv], self.known)
        presence = torch.zeros(asv.shape[0], self.known + 1, dtype=torch.float64).scatter_add(
            1, at, present
        )

        def kmers(weights: Tensor) -> Tensor:
            return (self._sketched(tokens, weights)[asv] * present[:, :, None]).sum(dim=1)

        features: dict[str, Any] = {"presence": presence[:, : self.known], "kmers": kmers}
        features["covariates"] = self._covariates(present, category, covariate)
        outputs = []
        for number, (one, learners) in enumerate(zip(self.fitted, self.learners, strict=True)):
            values, spec = _blended(one, learners, features), specs_in_order(self.targets)[number]  # type: ignore[arg-type]
            outputs.append(decoded(values[:, 0], spec) if spec.kind == "numeric" else values)
        return tuple(outputs)

    def _sketched(self, tokens: Tensor, weights: Tensor) -> Tensor:
        """Return the sketch of the 8-mers of each ASV ``[U, L]`` times weights ``[BUCKETS, C]``:
        ``[U, C]``.
        """
        words = kmer_words(tokens, K).sort(dim=1).values
        first = torch.cat(
            [torch.ones_like(words[:, :1], dtype=torch.bool), words[:, 1:] != words[:, :-1]], dim=1
        )
        distinct = (first & (words < 4**K)).double()
        sums: Tensor = (
            weights[self.bucket[words]] * (self.sign[words] * distinct)[:, :, None]
        ).sum(dim=1)
        return sums / torch.sqrt(distinct.sum(dim=1, keepdim=True).clamp(min=1))

    def _covariates(
        self, present: Tensor, category: Tensor | None, covariate: Tensor | None
    ) -> Tensor:
        """Return categories as columns of 0 and 1, then numbers, 0 where unknown: ``[B, P]``."""
        parts = [present[:, :0]]
        if category is not None and covariate is not None:
            for column, levels in enumerate(self.covariates.levels_):  # type: ignore[union-attr]
                parts.append((category[:, column, None] == torch.arange(1, levels + 1)).double())
            parts.append(torch.nan_to_num(covariate).double())
        return torch.cat(parts, dim=1)


def decoded(values: Tensor, spec: TargetSpec) -> Tensor:
    """Return a number in its own units, as `Targets.decode` does."""
    scaled = values * spec.scale.spread + spec.scale.center
    return torch.expm1(scaled) if spec.transform.startswith("log-") else scaled


def _blended(one: TargetBlend, learners: Mapping[str, nn.Module], features: Features) -> Tensor:
    """Return the weighted mean of what the learners say, probabilities to the power, as
    `TargetBlend.blend` does.
    """
    mean: Tensor = torch.stack(
        [w * learners[name](features) for name, w in one.weights.items() if w > 0]
    ).sum(dim=0)
    return (
        mean
        if one.power == 1
        else torch.softmax(one.power * torch.log(mean.clamp(min=1e-12)), dim=1)
    )


def known_asvs(saved: SavedModel) -> int:
    """Return how many ASVs the learners know by name."""
    return len(saved.blend.features["presence"].sequences_)  # type: ignore[attr-defined]


def learner_outputs(saved: SavedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return what the learners themselves predict of the inputs of `ExportedLearners`, in the
    targets' own units.
    """
    asv, present = inputs["asv"].numpy(), inputs["counts"].numpy() > 0
    samples, slots = np.nonzero(present)
    shape = (len(asv), len(inputs["tokens"]))
    counts = sparse.csr_matrix((np.ones(len(samples)), (samples, asv[samples, slots])), shape=shape)
    known = np.flatnonzero(inputs["place"].numpy() >= 0)
    columns = (known, inputs["place"].numpy()[known])
    select = sparse.csr_matrix((np.ones(len(known)), columns), shape=(shape[1], known_asvs(saved)))
    covariates = np.zeros((len(asv), 0))
    if "category" in inputs:
        category = inputs["category"].numpy()
        levels = enumerate(saved.blend.features["covariates"].levels_)  # type: ignore[attr-defined]
        parts = [category[:, [column]] == np.arange(1, number + 1) for column, number in levels]
        covariates = np.concatenate(
            [*parts, np.nan_to_num(inputs["covariate"].numpy())], axis=1
        ).astype(np.float64)
    computed: dict[str, tuple[Matrix, ...]] = {
        "presence": (sparse.csr_matrix(counts @ select),),
        "kmers": (Product(counts, kmer_sketch(inputs["tokens"].numpy())),),
        "covariates": (covariates,),
    }
    X = Inputs({}, None, np.arange(len(asv)), (0,), computed)  # type: ignore[arg-type]
    blended = saved.blend.blend(saved.blend.scores(X))
    numbers = len(saved.targets.numeric)
    decoded = saved.targets.decode(
        np.concatenate([np.zeros((len(asv), 0)), *blended[:numbers]], axis=1)
    )
    return [torch.from_numpy(np.ascontiguousarray(one)) for one in (*decoded.T, *blended[numbers:])]


# --- a network, and either one in a file -------------------------------------------------------

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}

# The ASVs that learners know by name, one in a line.
ASVS = "asvs.txt"

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
    "place": ("U",),
    "category": ("B",),
    "covariate": ("B",),
}

# Samples, ASVs of a sample, distinct ASVs, and how many bases shorter than the longest: one of
# each, odd, larger.
ODD_BATCHES = ((2, 3, 5, 0), (1, 1, 1, 0), (3, 7, 11, 3), (17, 33, 41, 1))


class ExportedEncoder(nn.Module):
    """Tokens uint8 ``[U, L]``, indices int64 ``[B, S]`` and reads float32 ``[B, S]`` to vectors of
    samples and ASVs.
    """

    def __init__(self, network: Aam) -> None:
        super().__init__()
        self.network = network
        self.length = network.asv.position.shape[0] * network.asv.patch

    def vectors(self, tokens: Tensor, asv: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ASVs in context ``[B, S, D]``, samples ``[B, D]`` and distinct ASVs ``[U, D]``."""
        # Padded to the length of the model, positions are the same number for every batch.
        full = F.pad(tokens, (0, self.length - tokens.shape[1]), value=PAD)
        _, asvs = self.network.asv(full, True)
        context, attended = self.network.sample(asvs[asv], counts)
        return context, attended + self.network.sample.contents(asvs, asv, counts), asvs

    def forward(self, tokens: Tensor, asv: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
        """Return vectors of samples ``[B, D]`` and of ASVs ``[U, D]``."""
        return self.vectors(tokens, asv, counts)[1:]


class ExportedModel(ExportedEncoder):
    """The same with the heads: numbers ``[B]`` in their own units and probabilities
    ``[B, K]``.
    """

    def __init__(self, saved: SavedModel) -> None:
        super().__init__(saved.required_network)
        self.numeric = saved.targets.numeric

    def forward(
        self,
        tokens: Tensor,
        asv: Tensor,
        counts: Tensor,
        category: Tensor | None = None,
        covariate: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return one tensor for each name of `output_names`."""
        _, samples, _ = self.vectors(tokens, asv, counts)
        network, read = self.network, samples
        if network.covariates is not None:
            batch = Batch(tokens, asv, counts, category=category, covariate=covariate)
            read = network.covariates(samples, batch)
        outputs = []
        if network.target is not None:
            numbers = network.target(read)
            outputs += [
                decoded(numbers[:, column], spec) for column, spec in enumerate(self.numeric)
            ]
        return (*outputs, *(torch.softmax(head(read), dim=-1) for head in network.labels))


def of_learners(saved: SavedModel, part: str) -> bool:
    """Return whether what is exported are linear learners and trees, without a network."""
    return part == "model" and bool(saved.blend.learners) and saved.blend.network_weight == 0


def check_exportable(saved: SavedModel, part: str) -> None:
    """Raise `InputError` for what no graph of tensors can hold."""
    if not of_learners(saved, part) and saved.required_network.reference is not None:
        raise InputError(
            "--model: it places ASVs on a reference tree, which no graph of tensors can hold"
        )
    if part == "encoder":
        return
    if not saved.targets.specs:
        raise InputError("--part model: a pretrained encoder has no targets; pass --part encoder")
    problems = []
    if saved.blend.learners and not of_learners(saved, part):
        others = sorted(saved.blend.learners)
        problems.append(
            f"--part model: this model blends its network with {', '.join(others)}, and one file "
            "holds the one or the "
            f"others; train with --members deep or --members {' '.join(others)}, or pass --part "
            "encoder"
        )
    if problems:
        raise InputError(*problems)


def output_names(saved: SavedModel, part: str) -> list[str]:
    """Return the names of what is computed, in its order."""
    if part == "encoder":
        return ["samples", "asvs"]
    return [spec.name for spec in (*saved.targets.numeric, *saved.targets.classes)]


def network_outputs(saved: SavedModel, part: str, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return what the network itself gives for some inputs, decoded as predictions are: one for
    each output name.
    """
    sizes = tuple((inputs["counts"] > 0).sum(dim=1).tolist())
    if part == "encoder" and saved.covariates.columns:
        # They change what target heads read, and no vector; the network asks for them all the same.
        category = torch.zeros(len(sizes), len(saved.covariates.categorical), dtype=torch.int64)
        covariate = torch.full((len(sizes), len(saved.covariates.numeric)), torch.nan)
        inputs = {**inputs, "category": category, "covariate": covariate}
    outputs = saved.required_network(Batch(**inputs, sizes=sizes, padded=True))  # type: ignore[arg-type]
    if part == "encoder":
        return [outputs.samples, outputs.asvs]
    tensors = []
    if outputs.target is not None:
        tensors += [
            torch.from_numpy(column) for column in saved.targets.decode(outputs.target.numpy()).T
        ]
    return [*tensors, *(torch.softmax(logits, dim=-1) for logits in outputs.labels)]


def example_inputs(
    saved: SavedModel, part: str, shape: Sequence[int], seed: int
) -> dict[str, Tensor]:
    """Return random inputs for ``(B, S, U, shorter)``: samples, slots, ASVs, and bases below the
    longest ASV.

    Each sample but the longest has empty slots; the second half of the ASVs is shorter than L.
    """
    samples, slots, asvs, shorter = shape
    random = torch.Generator().manual_seed(seed)
    learners = of_learners(saved, part)
    length = max(1, saved.model.positions - shorter)
    tokens = torch.randint(A, T + 1, (asvs, length), generator=random, dtype=torch.uint8)
    tokens[(asvs + 1) // 2 :, max(1, length // 2) :] = PAD
    counts = torch.randint(1, saved.depth + 1, (samples, slots), generator=random).float()
    for row in range(1, samples):
        counts[row, max(1, slots - row) :] = 0
    asv = torch.rand(samples, asvs, generator=random).argsort(dim=1)[:, :slots]
    inputs = {"tokens": tokens, "asv": asv.masked_fill(counts == 0, 0), "counts": counts}
    if learners:
        known = known_asvs(saved)
        place = torch.randperm(max(known, asvs), generator=random)[:asvs]
        inputs["place"] = place.masked_fill((place >= known) | (torch.arange(asvs) % 3 == 2), -1)
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
    """Write an exported model and its description to `folder`; return its largest difference from
    the model itself.

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
    if of_learners(saved, part):
        module: nn.Module = ExportedLearners(saved).eval()
        names = as_sequences(saved.blend.features["presence"].sequences_)  # type: ignore[attr-defined]
        (folder / ASVS).write_text("".join(f"{name}\n" for name in names), encoding="ascii")
    else:
        module = (
            ExportedModel(saved) if part == "model" else ExportedEncoder(saved.required_network)
        ).eval()
    with torch.no_grad(), _without_remarks():
        run = (_write_onnx if form == "onnx" else _write_torch)(module, saved, part, folder)
        difference = max(_difference(run, saved, part, seed) for seed in range(len(ODD_BATCHES)))
    if not difference <= TOLERANCE:
        raise RunError(
            f"what was exported differs from the model by {difference:.2g} of its values; it is "
            "not kept"
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
        _program(module, inputs),
        (),
        str(path),
        input_names=list(inputs),
        output_names=names,
        opset_version=OPSET,
        external_data=False,
        dynamo=True,
        verbose=False,
    )
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(values: dict[str, Tensor]) -> list[Tensor]:
        outputs: list[Any] = session.run(
            names, {name: value.numpy() for name, value in values.items()}
        )
        return [torch.from_numpy(value) for value in outputs]

    return run


def _write_torch(module: torch.nn.Module, saved: SavedModel, part: str, folder: Path) -> Run:
    path = folder / FILES["torch"]
    content = io.BytesIO()
    torch.export.save(_program(module, example_inputs(saved, part, ODD_BATCHES[0], 0)), content)
    # On a full disk torch's own writer ends the process.
    path.write_bytes(content.getbuffer())
    loaded = torch.export.load(path).module()
    return lambda values: list(loaded(**values))


def _difference(run: Run, saved: SavedModel, part: str, seed: int) -> float:
    """Return the largest difference between the model and what was written on one of the odd
    batches.
    """
    inputs = example_inputs(saved, part, ODD_BATCHES[seed], seed)
    learners = of_learners(saved, part)
    differences = []
    outputs = learner_outputs(saved, inputs) if learners else network_outputs(saved, part, inputs)
    for expected, value in zip(outputs, run(inputs), strict=True):
        if expected.shape != value.shape:
            raise RunError(
                f"an output has shape {tuple(value.shape)}, expected {tuple(expected.shape)}"
            )
        scale = max(1.0, float(expected.abs().max()))
        differences.append(float((expected - value).abs().max()) / scale)
    return max(differences)


def _description(saved: SavedModel, part: str, form: str, difference: float) -> dict[str, Any]:
    """Return what a program needs to make the inputs and to read the outputs."""
    tokens = {
        "padding": PAD,
        "A": A,
        "C": C,
        "G": G,
        "T": T,
        "other nucleotides": N,
        "masked": MASK,
    }
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
    if of_learners(saved, part):
        inputs["place"] = (
            f"int64 [U]: line of each ASV in {ASVS}, the first is 0; -1 where it is in none"
        )
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
