"""Windows of a teacher: tokens, its hidden states, the next token and its probabilities, in files
and in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aam.engine.checkpoint import State, load, save
from aam.errors import InputError

SUBSETS = ("train", "validation")


@dataclass(frozen=True, eq=False)
class Windows:
    """N windows of L tokens, with P hidden states of width H (P is L, or the patches of an
    encoder).

    Attributes
    ----------
    tokens : Tensor
        int64 ``[N, L]``.
    hidden : Tensor
        float32 ``[N, P, H]``.
    target : Tensor
        int64 ``[N]``: the next token among the C tokens that the student tells apart.
    teacher : Tensor
        float32 ``[N, C]``: logarithms of the teacher's probabilities of it; ``[N, 0]`` where it
        gives none.
    """

    tokens: Tensor
    hidden: Tensor
    target: Tensor
    teacher: Tensor

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.target)

    def rows(self, rows: Tensor | slice) -> Windows:
        """Return some of the windows."""
        return Windows(*(getattr(self, each.name)[rows] for each in fields(self)))

    def to(self, device: torch.device) -> Windows:
        """Return the windows on a device."""
        return Windows(
            *(getattr(self, each.name).to(device, non_blocking=True) for each in fields(self))
        )

    def split(self, size: int) -> Iterator[Windows]:
        """Yield the windows, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.rows(slice(start, start + size))


class Capture(NamedTuple):
    """The windows of a teacher by subset, the number of tokens C of the student, and facts about
    both.
    """

    windows: dict[str, Windows]
    classes: int
    facts: dict[str, Any]


def compact(target: Tensor, logits: Tensor, limit: int, train: int) -> tuple[Tensor, Tensor, int]:
    """Return targets and log-probabilities over the `limit` most frequent training targets and one
    for all others.

    Parameters
    ----------
    target, logits : Tensor
        Tokens ``[N]``, and what the teacher says of all V of them, ``[N, V]`` or ``[N, 0]``.
    limit, train : int
        Tokens that are told apart; the first `train` windows decide which.
    """
    count = torch.bincount(target[:train], minlength=max(logits.shape[1], int(target.max()) + 1))
    kept = count.argsort(descending=True, stable=True)[:limit]
    kept = kept[count[kept] > 0].sort().values
    place = torch.full((len(count),), len(kept)).index_copy(0, kept, torch.arange(len(kept)))
    probabilities = logits.double().softmax(1)
    if logits.shape[1]:
        probabilities = probabilities[:, kept]
        other = (1 - probabilities.sum(1, keepdim=True)).clamp_min(1e-12)
        probabilities = torch.cat([probabilities, other], 1)
    return place[target], probabilities.log().float(), len(kept) + 1


def write_windows(path: Path, capture: Capture) -> None:
    """Write windows to the folder `path`; all or nothing."""
    tensors = {
        f"{subset}.{name}": value
        for subset, windows in capture.windows.items()
        for name, value in vars(windows).items()
    }
    save(path, State(tensors, {"classes": capture.classes, **capture.facts}))


def read_windows(path: Path) -> Capture:
    """Read and verify what `write_windows` wrote; `InputError` where it is damaged, or something
    else.
    """
    state = load(path)
    try:
        windows = {subset: Windows(**state.part(subset)) for subset in SUBSETS}
        classes = int(state.facts["classes"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not the windows of a teacher ({error}); expected the folder that teach wrote"
        ) from None
    if problems := [
        problem for subset in SUBSETS for problem in _problems(windows, subset, classes)
    ]:
        raise InputError(*(f"{path}: {problem}; write them anew by teach" for problem in problems))
    return Capture(windows, classes, state.facts)


def _problems(windows: dict[str, Windows], subset: str, classes: int) -> list[str]:
    """List the problems of the windows of a subset: their sizes, compared with training, and
    their values.
    """
    one, train = windows[subset], windows["train"]
    shapes = {name: tuple(value.shape) for name, value in vars(one).items()}
    tokens, hidden = train.tokens.shape[1:], train.hidden.shape[1:]
    sizes = {"tokens": tokens, "hidden": hidden, "target": (), "teacher": train.teacher.shape[1:]}
    found = f"{subset} windows have the sizes {shapes}"
    count = shapes["target"][0] if shapes["target"] else 0
    if count < 1 or any(shapes[name] != (count, *size) for name, size in sizes.items()):
        return [f"{found}, which do not fit together or those of training"]
    if len(tokens) != 1 or len(hidden) != 2 or train.teacher.shape[1:] not in ((0,), (classes,)):
        return [f"{found}, expected tokens, states and {classes} classes"]
    low, high = int(one.target.min()), int(one.target.max())
    finite = bool(one.hidden.isfinite().all()) and not bool(one.teacher.isnan().any())
    checks = {
        f"{subset} targets from {low} to {high}, expected 0 to {classes - 1}": low < 0
        or high >= classes,
        f"hidden states of {subset} windows, or what the teacher says of them, are not finite": not finite,  # noqa: E501
    }
    return [problem for problem, holds in checks.items() if holds]
