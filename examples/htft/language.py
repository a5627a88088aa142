"""A language of order two, and small models of language that are trained on it with the engine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.device.rng import generator
from aam.engine.task import Metrics, Terms
from aam.model.layers import Stack
from examples.runs import RowsTask

# How much the two tokens before decide about the next; a model that knows them has a perplexity
# near 7.
STRENGTH = 1.75


def markov_stream(vocabulary: int, length: int, seed: int) -> npt.NDArray[np.int64]:
    """Return tokens, each drawn by ``softmax(A[before] + B[one before that])`` with Gaussian A and
    B.
    """
    random = generator(seed, "language", vocabulary)
    first, second = STRENGTH * random.standard_normal((2, vocabulary, vocabulary))
    logits = first[:, None] + second[None]
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    cumulative = np.cumsum(probabilities / probabilities.sum(-1, keepdims=True), -1)
    uniform = generator(seed, "stream", length).random(length)
    stream = np.zeros(length, np.int64)
    for at in range(2, length):
        stream[at] = min(
            np.searchsorted(cumulative[stream[at - 1], stream[at - 2]], uniform[at]), vocabulary - 1
        )
    return stream


class LanguageModel(nn.Module):
    """A GRU, or a transformer of two layers, that predicts the next token.

    Parameters
    ----------
    kind : str
        ``gru`` or ``gpt``.
    vocabulary, width, length : int
        Tokens there are, width of hidden states, longest input.
    """

    def __init__(self, kind: str, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.readout = nn.Linear(width, vocabulary)
        self.gru = nn.GRU(width, width, batch_first=True) if kind == "gru" else None
        if self.gru is None:
            self.position = nn.Parameter(0.02 * torch.randn(length, width))
            self.stack = Stack(width, 4, 2, 0.0)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the hidden states ``[B, L, H]`` of tokens ``[B, L]``."""
        x = self.embedding(tokens)
        if self.gru is not None:
            return self.gru(x)[0]  # type: ignore[no-any-return]
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()[None, None]
        return self.stack(x + self.position[:length], mask)  # type: ignore[no-any-return]

    def teach(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states, and the logits of the next token ``[B, V]``."""
        hidden = self.hidden(tokens)
        return hidden, self.readout(hidden[:, -1])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits ``[B, L, V]``."""
        return self.readout(self.hidden(tokens))  # type: ignore[no-any-return]


class LanguageTask(RowsTask):
    """A language model learns to predict each token of windows of a stream, ``[N, L + 1]``."""

    loss_names = ("token",)
    best_metric = "val_perplexity"

    def __init__(
        self,
        model: LanguageModel,
        windows: Tensor,
        held_out: Tensor,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(model, np.arange(len(windows)), batch_size, seed, device)
        self.windows, self.held_out = windows, held_out

    def take(self, rows: Tensor) -> Tensor:
        """Return some windows."""
        return self.windows[rows]

    def losses(self, network: nn.Module, batch: Tensor) -> Terms:
        """Return the cross entropy of all tokens but the first."""
        logits, targets = network(batch[:, :-1]), batch[:, 1:]
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return {"token": (total, torch.tensor(targets.numel(), device=self.device))}

    def validate(self, network: nn.Module) -> Metrics:
        """Return the perplexity of held-out windows."""
        total, count = self.losses(network, self.prepare(self.held_out, 0))["token"]
        return {"val_perplexity": float((total / count).exp())}
