"""`aam embed`: vectors of samples and ASVs."""

from __future__ import annotations

import csv
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from aam.commands.apply import load_table, prepare_models
from aam.config_commands import EmbedConfig
from aam.data.study import Study
from aam.device.options import RuntimeConfig
from aam.engine.run import describe
from aam.errors import InputError
from aam.files.atomic import atomic_file
from aam.files.output_folder import MEMORY, RUN, OutputFolder
from aam.model.heads import TaxaHead
from aam.options import files_read, given, to_dict
from aam.predict.network import SAMPLES_OF_PART, AsvVectors, encode_table, run_model
from aam.predict.saved_model import SavedModel

log = logging.getLogger("aam")


Parts = Iterable[npt.NDArray[np.float32]]


def _write_npy(folder: Path, name: str, ids: Sequence[str], parts: Parts, width: int) -> None:
    about = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), width)}
    with atomic_file(folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, about)
        for vectors in parts:
            file.write(np.ascontiguousarray(vectors, "<f4").data)
    with atomic_file(folder / f"{name}.ids.txt") as temporary, temporary.open("w", encoding="utf-8") as texts:
        texts.writelines(f"{identifier}\n" for identifier in ids)


def _write_vectors(folder: Path, name: str, ids: Sequence[str], parts: Parts, width: int, form: str) -> None:
    """Write vectors as they come, in parts, in the order of `ids`."""
    if form == "npy":
        _write_npy(folder, name, ids, parts, width)
        return
    rows = (row for vectors in parts for row in vectors)
    with atomic_file(folder / f"{name}.tsv") as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, dialect="excel-tab", lineterminator="\n")
        writer.writerow(["sample-id" if name == "samples" else "asv", *(f"d{i}" for i in range(width))])
        writer.writerows(
            [identifier, *(f"{value:.6g}" for value in row)] for identifier, row in zip(ids, rows, strict=True)
        )


def _taxa(saved: SavedModel, sequences: Iterable[str], parts: Iterable[torch.Tensor]) -> Iterator[list[str]]:
    """Yield the header, then for each ASV its likeliest taxon at each rank and the probability, from vectors [n, D]."""
    head, further = saved.required_network.further["taxonomy"], saved.heads.further
    if not isinstance(head, TaxaHead):
        raise ValueError("the model has no head of taxa")
    yield ["asv", *(name for rank in further.ranks for name in (rank, f"{rank}.probability"))]
    remaining = iter(sequences)
    for vectors in parts:
        with torch.inference_mode():
            best = [shares.max(dim=1) for shares in head.probabilities(vectors)]
        by_rank = [
            [(names[place], f"{share:.4f}") for share, place in zip(*map(torch.Tensor.tolist, each), strict=True)]
            for names, each in zip(further.taxa, best, strict=True)
        ]
        for cells in zip(*by_rank, strict=True):
            yield [next(remaining), *itertools.chain.from_iterable(cells)]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of samples, float32 ``[N, D]``, and of ASVs, float32 ``[F, D]``, with their ids and sequences."""

    sample_ids: tuple[str, ...]
    samples: npt.NDArray[np.float32]
    sequences: tuple[str, ...]
    asvs: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Embedding:
    """A model and a table whose samples are embedded part by part; the vectors of the ASVs ``[F, D]`` are there."""

    saved: SavedModel
    study: Study
    asvs: AsvVectors
    runtime: RuntimeConfig

    @property
    def width(self) -> int:
        """Return the width of every vector."""
        return self.asvs.vectors.shape[1]

    def samples(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the vectors of all samples in the order of the table, those of some thousands at a time."""
        rows = np.arange(len(self.study.table.sample_ids))
        for start in range(0, len(rows), SAMPLES_OF_PART):
            some, device = rows[start : start + SAMPLES_OF_PART], self.asvs.vectors.device
            predicted = run_model(self.saved.required_network, self.study, some, device, self.runtime, asvs=self.asvs)
            yield predicted.samples.astype(np.float32)


def open_embedding(models: Sequence[SavedModel], config: EmbedConfig) -> Embedding:
    """Read a table and encode its ASVs.

    Raises
    ------
    InputError
        Several models, or a bad table.
    """
    if len(models) > 1:
        raise InputError(f"--model: {len(models)} models, each with vectors of its own; name one of them")
    (saved,) = models
    network = saved.required_network
    study, _ = load_table(models, config)
    asvs = encode_table(network, study, saved.device, config.runtime)
    study = study.with_covariates(saved.covariates, None).placed_on(saved.reference)
    return Embedding(saved, study, asvs, config.runtime)


def embed_samples(models: Sequence[SavedModel], config: EmbedConfig) -> Vectors:
    """Return the vectors of every sample of a table that reaches the depth, and of every ASV.

    Raises
    ------
    InputError
        Several models, or a bad table.
    """
    embedding = open_embedding(models, config)
    table = embedding.study.table
    samples = np.concatenate(list(embedding.samples()))
    return Vectors(table.sample_ids, samples, tuple(table.sequences), embedding.asvs.vectors.cpu().numpy())


def embed_table(config: EmbedConfig) -> None:
    """Write the vectors of every sample that reaches the depth and every ASV, and its taxa where the model has some."""
    folder = given(config.runtime.output_dir)
    files = files_read(config)
    suffixes = (".npy", ".ids.txt") if config.format == "npy" else (".tsv",)
    outputs = [RUN, "taxa.tsv", *MEMORY, *(f"{name}{suffix}" for name in ("samples", "asvs") for suffix in suffixes)]
    output = OutputFolder(folder, "embed", outputs, [*files.values()], config.runtime.overwrite)
    output.check()
    embedding = open_embedding(prepare_models(config.model, config.runtime), config)
    table, asvs = embedding.study.table, embedding.asvs.vectors
    with output.replaced(describe("embed", to_dict(config), files, {})) as new:
        _write_vectors(new, "samples", table.sample_ids, embedding.samples(), embedding.width, config.format)
        parts = (part.cpu().numpy() for part in asvs.split(SAMPLES_OF_PART))
        _write_vectors(new, "asvs", table.sequences, parts, embedding.width, config.format)
        if "taxonomy" in embedding.saved.required_network.further:
            rows = _taxa(embedding.saved, table.sequences, asvs.split(SAMPLES_OF_PART))
            with (new / "taxa.tsv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, dialect="excel-tab", lineterminator="\n").writerows(rows)
    log.info("%s: %d samples and %d ASVs", folder, len(table.sample_ids), len(table.sequences))
