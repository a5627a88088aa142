"""`aam embed`: vectors of samples and ASVs, and distances between samples."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.api.apply import load_table, output_of, prepare_models, written
from aam.config import EmbedConfig
from aam.data.rarefaction import rarefied_table
from aam.data.study import Inputs, PlacedSamples, Reference, Study
from aam.device.options import RuntimeConfig
from aam.encoders import INSTALL
from aam.errors import InputError, shown
from aam.files.atomic import atomic_file, write_text
from aam.io.matrices import write_distances, write_lines
from aam.model.aam import Aam
from aam.predict.saved_model import SavedModel
from aam.training.inference import SAMPLES_OF_PART, AsvVectors, encode_table, run_model

log = logging.getLogger("aam")

Parts = Iterable[npt.NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Embedding:
    """Vectors of the samples of a study, a few thousand at a time, and of its ASVs.

    A model that is a reference has no vectors of ASVs. With a reference, `on_tree` has taxa and
    distances.
    """

    study: Study
    width: int
    samples: Parts
    asvs: Parts | None
    on_tree: PlacedSamples | None


def embedded(
    models: Sequence[SavedModel], config: EmbedConfig, inputs: Inputs | None = None
) -> Embedding:
    """Encode a table: that of `inputs`, or of the file that `config` names.

    Raises
    ------
    InputError
        Several models, a model without a network or without the reference that distances need, or
        a bad table.
    """
    saved, on_tree = _single(models), None
    reference = _reference(saved) if config.distances or saved.only_places else None
    if not saved.only_places:
        _ = saved.required_network  # a model without one is refused before the table is read
        if (config.rarefy_depth or 0) > saved.depth:
            raise InputError(
                f"--rarefy-depth is {config.rarefy_depth}, expected at most {saved.depth}, the "
                "depth of the samples that the network has learned from"
            )
    study = load_table(models, config, inputs)[0]
    if reference is not None:
        on_tree = _on_reference(study, reference, str(config.table))
        if saved.only_places:
            return Embedding(study, reference.vector_width, on_tree.vectors(), None, on_tree)
    network = saved.required_network
    asvs = encode_table(network, study, saved.device, config.runtime)
    parts = (part.cpu().numpy() for part in asvs.vectors.split(SAMPLES_OF_PART))
    study = study.with_covariates(saved.covariates, None).placed_on(saved.reference)
    samples = _sample_vectors(network, study, asvs, config.runtime)
    return Embedding(study, asvs.vectors.shape[1], samples, parts, on_tree)


def _sample_vectors(
    network: Aam, study: Study, asvs: AsvVectors, runtime: RuntimeConfig
) -> Iterator[npt.NDArray[np.float32]]:
    rows, device = np.arange(len(study.table.sample_ids)), asvs.vectors.device
    for start in range(0, len(rows), SAMPLES_OF_PART):
        part = rows[start : start + SAMPLES_OF_PART]
        predicted = run_model(network, study, part, device, runtime, asvs=asvs)
        yield predicted.samples.astype(np.float32)


def place_samples(
    models: Sequence[SavedModel], config: EmbedConfig, inputs: Inputs | None = None
) -> tuple[Study, PlacedSamples]:
    """Rarefy a table, of `inputs` or of `config`, and place its samples on a model's reference.

    Raises
    ------
    InputError
        Several models, a model without a reference, or a bad table.
    """
    reference = _reference(_single(models))
    study = load_table(models, config, inputs)[0]
    return study, _on_reference(study, reference, str(config.table))


def _single(models: Sequence[SavedModel]) -> SavedModel:
    if len(models) > 1:
        raise InputError(
            f"--model: {len(models)} models, each with its own vectors; name one of them"
        )
    return models[0]


def _reference(saved: SavedModel) -> Reference:
    if saved.reference is None:
        raise InputError(
            "--distances: the model has no reference tree; pass --model 16s or 16s-v4, which are "
            f"part of aam-16s: {INSTALL}"
        )
    return saved.reference


def _on_reference(study: Study, reference: Reference, source: str) -> PlacedSamples:
    tokens, counts = study.tokens.numpy(), sparse.csr_matrix(rarefied_table(study))
    return reference.place(study.table, tokens, counts, source)


def embed_table(config: EmbedConfig) -> None:
    """Write vectors of samples and ASVs, and the distances that are asked for.

    A model that is a reference alone has no vectors of ASVs, but taxa.

    Raises
    ------
    InputError
        A model or table that cannot be read or embedded, or an output that exists.
    """
    form = config.format
    suffixes = (".npy", ".ids.txt") if form == "npy" else (".tsv",)
    names = [f"{name}{suffix}" for name in ("samples", "asvs") for suffix in suffixes]
    names += [f"{name}.{ending}" for name in config.distances for ending in (form, "ids.txt")]
    output = output_of("embed", config, ["taxa.tsv", *names])
    found = embedded(prepare_models(config.model, config.runtime), config)
    table, width = found.study.table, found.width
    with written(output, config) as new:
        _write_vectors(new, "samples", table.sample_ids, found.samples, width, form)
        if found.asvs is not None:
            _write_vectors(new, "asvs", table.sequences, found.asvs, width, form)
        elif found.on_tree is not None:
            _write_taxa(new, found.on_tree.taxa())
        if found.on_tree is not None:
            for metric in config.distances:
                tiles = found.on_tree.distances(metric)
                write_distances(new / f"{metric}.{form}", table.sample_ids, tiles)
    log.info(
        "%s: %s of %s samples, each rarefied to %s reads%s",
        output.folder,
        shown(["samples", "taxa" if found.asvs is None else "asvs", *config.distances]),
        f"{len(table.sample_ids):,}",
        f"{found.study.depth:,}",
        "" if config.rarefy_depth else ", the depth of the model (--rarefy-depth changes it)",
    )


def _write_vectors(
    folder: Path, name: str, ids: Sequence[str], parts: Parts, width: int, form: str
) -> None:
    """Write vectors as they come, in parts, in the order of `ids`."""
    path = folder / f"{name}.{'npy' if form == 'npy' else 'tsv'}"
    with atomic_file(path) as temporary:
        if form == "npy":
            about = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), width)}
            with temporary.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, about)
                for vectors in parts:
                    file.write(np.ascontiguousarray(vectors, "<f4").data)
            write_text(folder / f"{name}.ids.txt", "".join(f"{row_id}\n" for row_id in ids))
            return
        rows = (row for vectors in parts for row in vectors)
        header = ["sample-id" if name == "samples" else "asv", *(f"d{i}" for i in range(width))]
        with temporary.open("w", encoding="utf-8", newline="") as lines:
            write_lines(lines, header, ids, rows, ".6g")


def _write_taxa(folder: Path, rows: Iterable[list[str]]) -> None:
    with (folder / "taxa.tsv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, dialect="excel-tab", lineterminator="\n").writerows(rows)
