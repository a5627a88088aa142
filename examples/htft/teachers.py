"""Teachers: what gives hidden states and probabilities for windows of tokens, and the windows taken
from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from aam.data.table import read_table
from aam.data.tokens import encode
from aam.errors import InputError, import_extra
from aam.predict.saved_model import load_model
from examples.htft.config import TeacherOptions
from examples.htft.language import markov_stream
from examples.htft.windows import Capture, Windows, compact

# Windows that a teacher reads at a time.
CAPTURED = 256


# Returns hidden states ``[B, P, H]`` of tokens ``[B, L]``, and logits of the next token ``[B, V]``
# or ``[B, 0]``.
Teacher = Callable[[Tensor], tuple[Tensor, Tensor]]


class Corpus(NamedTuple):
    """Windows of tokens, int64 ``[N, L + 1]``, training windows first, and how many those are."""

    windows: Tensor
    train: int


def nucleotide_teacher(folder: Path) -> Teacher:
    """Return the nucleotide encoder of a model of aam; it says nothing of the next base."""
    encoder = load_model(folder, torch.device("cpu")).require_network().asv.eval()

    def teach(tokens: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = encoder(tokens.to(torch.uint8), False)
        return hidden, hidden.new_zeros(len(tokens), 0)

    return teach


def transformers_teacher(folder: Path) -> Teacher:
    """Return a causal language model of transformers, from a local folder: its last hidden states,
    and logits.
    """
    transformers = import_extra("transformers", "htft", "--provider hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()

    def teach(tokens: Tensor) -> tuple[Tensor, Tensor]:
        outputs = model(tokens, output_hidden_states=True)
        return outputs.hidden_states[-1].float(), outputs.logits[:, -1].float()

    return teach


def markov_corpus(options: TeacherOptions, seed: int) -> Corpus:
    """Return windows of the Markov language that do not overlap."""
    count = options.windows + options.held_out_windows
    stream = markov_stream(options.vocabulary, count * (options.length + 1), seed)
    return Corpus(torch.from_numpy(stream).view(count, -1), options.windows)


def _stream_corpus(streams: Sequence[np.ndarray[Any, Any]], options: TeacherOptions) -> Corpus:
    """Return windows of streams, which do not overlap; the last are held out.

    Raises
    ------
    InputError
        The streams hold fewer windows than the options ask for.
    """
    size = options.length + 1
    cut = [stream[: len(stream) // size * size].reshape(-1, size) for stream in streams]
    windows = np.concatenate(cut).astype(np.int64)
    wanted = options.windows + options.held_out_windows
    if len(windows) < wanted:
        problem = (
            f"--text {options.text} holds {len(windows)} windows of {size} tokens, "
            f"expected {wanted}"
        )
        raise InputError(f"{problem}; lower --windows {options.windows} or --held-out-windows")
    return Corpus(torch.from_numpy(windows[:wanted]), options.windows)


def make_teacher(options: TeacherOptions) -> tuple[Teacher, Corpus]:
    """Return a teacher that exists already, and its windows.

    Raises
    ------
    InputError
        A file is not named, or too short.
    """
    if options.source is None or options.text is None:
        raise InputError(
            f"--provider {options.provider}: name the model by --source and what it reads by --text"
        )
    if options.provider == "aam":
        streams = [encode([each])[0] for each in read_table(options.text).sequences]
        return nucleotide_teacher(options.source), _stream_corpus(streams, options)
    transformers = import_extra("transformers", "htft", "--provider hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.source, local_files_only=True)
    tokens = np.array(tokenizer(options.text.read_text(encoding="utf-8"))["input_ids"], np.int64)
    return transformers_teacher(options.source), _stream_corpus([tokens], options)


@torch.inference_mode()
def capture(teacher: Teacher, corpus: Corpus, options: TeacherOptions) -> Capture:
    """Hidden states and predictions of the teacher on the windows of a corpus."""
    tokens, target = corpus.windows[:, :-1].contiguous(), corpus.windows[:, -1]
    parts = [teacher(part) for part in tokens.split(CAPTURED)]
    hidden, logits = (torch.cat(values) for values in zip(*parts, strict=True))
    place, log_probabilities, classes = compact(target, logits, options.vocab_limit, corpus.train)
    windows = Windows(tokens, hidden, place, log_probabilities)
    subsets = {
        "train": windows.rows(slice(corpus.train)),
        "validation": windows.rows(slice(corpus.train, None)),
    }
    return Capture(subsets, classes, {"provider": options.provider})
