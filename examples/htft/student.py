"""The student: what its two stages see, what they give, and how they are judged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.device.distributed import SINGLE, World
from aam.device.rng import GOLDEN, splitmix64
from aam.engine.checkpoint import load
from aam.errors import InputError
from aam.options import configured, to_dict
from examples.htft.config import StudentOptions, field_config
from examples.htft.field import HypertensorField
from examples.htft.sketch import CountSketch, Srht
from examples.htft.windows import Capture, Windows

# Windows that are evaluated at a time.
EVALUATED = 256


def hashed_bigrams(tokens: Tensor, size: int) -> Tensor:
    """Return how often each of `size` buckets is hit by the bigrams of ``[B, L]``, two buckets for
    each bigram.
    """
    pairs = tokens[:, :-1] * GOLDEN + tokens[:, 1:]
    counts = torch.zeros(len(tokens), size, device=tokens.device)
    for salt in (1, 2):
        bucket = (splitmix64(pairs + salt) & 0x7FFFFFFF) % size
        counts.scatter_add_(1, bucket, torch.ones_like(bucket, dtype=counts.dtype))
    return counts


def position_features(length: int) -> Tensor:
    """Return sine and cosine of pi i / (L - 1), ``[2 L]``; they are the same in all windows, as
    published.
    """
    angle = math.pi * torch.arange(length) / max(length - 1, 1)
    return torch.stack((angle.sin(), angle.cos()), 1).flatten()


class Shape(NamedTuple):
    """The sizes that windows have: tokens, hidden states and their width, and classes of the next
    token.
    """

    length: int
    states: int
    width: int
    classes: int

    @classmethod
    def of(cls, windows: Windows, classes: int) -> Shape:
        """Return the sizes of windows."""
        states, width = windows.hidden.shape[1:]
        return cls(windows.tokens.shape[1], states, width, classes)


class Stage(nn.Module):
    """CountSketch, Hadamard transform and field of one stage."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        options: StudentOptions,
        number: int,
        seed: int,
        bias: Tensor | None = None,
        world: World = SINGLE,
    ) -> None:
        super().__init__()
        config = field_config(options, number)
        self.sketch = CountSketch(inputs, options.sketch, seed)
        self.transform = Srht(options.sketch, options.projected, seed + 1, options.block)
        self.field = HypertensorField(options.projected, outputs, config, seed + 2, bias, world)
        self.recent_input: Tensor | None = None

    def project(self, raw: Tensor) -> Tensor:
        """Return the inputs of the field ``[B, d]`` of raw vectors."""
        return self.transform(self.sketch(raw))  # type: ignore[no-any-return]

    def forward(self, raw: Tensor) -> Tensor:
        """Output of the field for raw vectors."""
        x = self.project(raw)
        self.recent_input = x.detach() if self.training else None
        return self.field(x)  # type: ignore[no-any-return]


class Student(nn.Module):
    """Stage 1 predicts a projection of the teacher's last hidden state, stage 2 the next token.

    No gradient goes from stage 2 to stage 1.

    Parameters
    ----------
    options : StudentOptions
    shape : Shape
    seed : int
    unigram : Tensor, optional
        Logarithms of the probabilities of the classes, to start from.
    world : World
        Ranks that share the units.
    """

    projection: Tensor
    position: Tensor

    def __init__(
        self,
        options: StudentOptions,
        shape: Shape,
        seed: int,
        unigram: Tensor | None = None,
        world: World = SINGLE,
    ) -> None:
        super().__init__()
        self.options, self.shape = options, shape
        random = torch.Generator().manual_seed(seed)
        projection = torch.randn(shape.width, options.embedding, generator=random)
        self.register_buffer("projection", projection / math.sqrt(shape.width), persistent=False)
        self.register_buffer("position", position_features(shape.length), persistent=False)
        tail = min(options.tail, shape.states) * shape.width
        raw = shape.states * shape.width + options.bigrams + 2 * shape.length
        self.first = Stage(raw, options.embedding, options, 0, seed + 10, None, world)
        second = options.embedding + tail
        self.second = Stage(second, shape.classes, options, 1, seed + 20, unigram, world)

    def first_input(self, windows: Windows) -> Tensor:
        """Return the raw vectors of stage 1."""
        position = self.position.expand(len(windows), -1)
        bigrams = hashed_bigrams(windows.tokens, self.options.bigrams)
        return torch.cat([windows.hidden.flatten(1), bigrams, position], 1)

    def second_input(self, embedding: Tensor, windows: Windows) -> Tensor:
        """Return the raw vectors of stage 2."""
        return torch.cat([embedding, windows.hidden[:, -self.options.tail :].flatten(1)], 1)

    def target(self, windows: Windows) -> Tensor:
        """Target of stage 1, ``[B, E]``."""
        return windows.hidden[:, -1] @ self.projection

    def embed(self, windows: Windows) -> Tensor:
        """Prediction of stage 1, ``[B, E]``."""
        return self.first(self.first_input(windows))  # type: ignore[no-any-return]

    def classify(self, embedding: Tensor, windows: Windows) -> Tensor:
        """Return logits of the next token ``[B, C]`` by stage 2."""
        return self.second(self.second_input(embedding.detach(), windows))  # type: ignore[no-any-return]

    def forward(self, windows: Windows) -> tuple[Tensor, Tensor]:
        """Predictions of both stages."""
        embedding = self.embed(windows)
        return embedding, self.classify(embedding, windows)

    def description(self) -> dict[str, Any]:
        """Arguments of `from_description`, as values of JSON."""
        return {"student": to_dict(self.options), "shape": list(self.shape)}

    @classmethod
    def load(cls, path: Path, captured: Capture) -> Student:
        """Return the trained student in a folder; `InputError` where it holds another model or fits
        other windows.
        """
        state, shape = load(path), Shape.of(captured.windows["train"], captured.classes)
        try:
            of_student, options = Shape(*state.facts["shape"]), state.facts["student"]
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{path}: not a student ({error}); --model takes the folder model/ that train wrote"
            ) from None
        if of_student != shape:
            raise InputError(
                f"{path}: a student of other windows, {of_student}, not {shape}; name those by "
                "--windows"
            )
        units = [
            len(state.tensors.get(f"{stage}.field.normal", ())) for stage in ("first", "second")
        ]
        if not isinstance(options, dict) or options.get("units") != units:
            raise InputError(
                f"{path}: its description does not fit its weights of {units} units; train it anew"
            )
        student = cls.from_description(state.facts, 0)
        try:
            student.load_state_dict(state.tensors)
        except RuntimeError as error:
            raise InputError(
                f"{path}: its weights do not fit its description ({error}); train it anew"
            ) from None
        return student

    @classmethod
    def from_description(cls, description: dict[str, Any], seed: int) -> Student:
        """Return a student with new weights, as `description` says."""
        options = configured(StudentOptions(), description["student"], "model")
        return cls(options, Shape(*description["shape"]), seed)


@dataclass
class Score:
    """The quality of a student: R2 of stage 1, and the mean cross entropies of both stages."""

    r2: float
    embedding: float
    token: float

    @property
    def perplexity(self) -> float:
        """The perplexity of the next token."""
        return math.exp(min(self.token, 100.0))


@torch.no_grad()
def evaluate(student: Student, windows: Windows, device: torch.device) -> Score:
    """Return the quality of a student on windows."""
    student.eval()
    residual = token = squares = 0.0
    targets = student.target(windows.to(device)).double()
    centred = float((targets - targets.mean(0)).square().sum())
    for part in windows.split(EVALUATED):
        moved = part.to(device)
        embedding, logits = student(moved)
        residual += float((embedding - student.target(moved)).double().square().sum())
        token += float(F.cross_entropy(logits.double(), moved.target, reduction="sum"))
        squares += len(part)
    return Score(1 - residual / centred, residual / 2 / squares, token / squares)


def unigram_logits(target: Tensor, classes: int) -> Tensor:
    """Return the logarithms of the smoothed frequencies of the classes."""
    counts = torch.bincount(target, minlength=classes).float() + 0.5
    return (counts / counts.sum()).log()
