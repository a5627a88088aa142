"""`aam embed`: vectors of samples and ASVs, and distances between samples."""

from __future__ import annotations

import csv
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.api.apply import prepare_models
from aam.api.embedding import Embedding, PlacedSamples, open_embedding, placed_samples
from aam.config_commands import EmbedConfig
from aam.diversity.placed import WIDTH, PlacedMetric
from aam.engine.run import describe
from aam.errors import InputError, shown
from aam.files.atomic import atomic_file
from aam.files.output_folder import MEMORY, RUN, OutputFolder
from aam.io.matrices import fill_tiles, write_distances, write_lines
from aam.io.metadata import read_metadata
from aam.options import files_read, given, to_dict
from aam.predict.network import SAMPLES_OF_PART

log = logging.getLogger("aam")


# Two axes need three samples.
LEAST_DRAWN = 3

Parts = Iterable[npt.NDArray[np.float32]]
Colours = Sequence[str | None]


def _write_npy(folder: Path, name: str, ids: Sequence[str], parts: Parts, width: int) -> None:
    about = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), width)}
    with atomic_file(folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, about)
        for vectors in parts:
            file.write(np.ascontiguousarray(vectors, "<f4").data)
    with (
        atomic_file(folder / f"{name}.ids.txt") as temporary,
        temporary.open("w", encoding="utf-8") as texts,
    ):
        texts.writelines(f"{identifier}\n" for identifier in ids)


def _write_vectors(
    folder: Path, name: str, ids: Sequence[str], parts: Parts, width: int, form: str
) -> None:
    """Write vectors as they come, in parts, in the order of `ids`."""
    if form == "npy":
        _write_npy(folder, name, ids, parts, width)
        return
    rows = (row for vectors in parts for row in vectors)
    header = ["sample-id" if name == "samples" else "asv", *(f"d{i}" for i in range(width))]
    with (
        atomic_file(folder / f"{name}.tsv") as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        write_lines(file, header, ids, rows, ".6g")


def _placed_taxa(on_tree: PlacedSamples) -> Iterator[list[str]]:
    """Yield the header, then for each ASV its likeliest taxon at each rank and the probability."""
    ranks = list(on_tree.reference.taxa(on_tree.placement))
    yield ["asv", *(name for rank, _, _ in ranks for name in (rank, f"{rank}.probability"))]
    for row, sequence in enumerate(on_tree.sequences):
        cells = ((names[row], f"{probability[row]:.4f}") for _, names, probability in ranks)
        yield [sequence, *itertools.chain.from_iterable(cells)]


def _write_taxa(folder: Path, rows: Iterable[list[str]]) -> None:
    with (folder / "taxa.tsv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, dialect="excel-tab", lineterminator="\n").writerows(rows)


def _write_distances(
    folder: Path, on_tree: PlacedSamples, config: EmbedConfig, values: Colours | None
) -> None:
    for metric in config.distances:
        write_distances(
            folder / f"{metric}.{config.format}", on_tree.sample_ids, on_tree.distances(metric)
        )
        if values is not None:
            _draw(folder, on_tree, metric, given(config.color_by), values)


def _draw(
    folder: Path, on_tree: PlacedSamples, metric: PlacedMetric, column: str, values: Colours
) -> None:
    """Write the ordination of samples, of `MOST_POINTS` at most, in the colours of a metadata
    column.
    """
    # Imported here: it takes half a second, and few runs draw.
    from aam.report.charts import drawn_rows
    from aam.report.samples import column_figure

    rows = drawn_rows(len(on_tree.sample_ids))
    ids = tuple(on_tree.sample_ids[row] for row in rows.tolist())
    distances = np.zeros((len(rows), len(rows)))
    some = replace(on_tree, sample_ids=ids, reads=on_tree.reads[rows], counts=on_tree.counts[rows])
    fill_tiles(distances, some.distances(metric))
    colours = [values[row] for row in rows.tolist()]
    column_figure(distances, ids, column, colours, metric, len(on_tree.sample_ids)).write(folder)


def _colours(config: EmbedConfig, sample_ids: Sequence[str]) -> Colours | None:
    """Return the value of --color-by of each sample, none where it has none; `InputError` for too
    few to ordinate.
    """
    if config.color_by is None:
        return None
    if len(sample_ids) < LEAST_DRAWN:
        raise InputError(
            f"--color-by: {len(sample_ids)} samples, an ordination needs {LEAST_DRAWN}; leave it "
            "out"
        )
    return read_metadata(given(config.metadata), config.decimal).values(config.color_by, sample_ids)


def embed_table(config: EmbedConfig) -> None:
    """Write the vectors of every sample that reaches the depth and of every ASV, taxa and
    distances.

    Taxa where the model has some, distances where they are asked for. A model that is a reference
    tree alone has no vectors of ASVs.
    """
    folder = given(config.runtime.output_dir)
    files = files_read(config)
    suffixes = (".npy", ".ids.txt") if config.format == "npy" else (".tsv",)
    outputs = [
        RUN,
        "taxa.tsv",
        *MEMORY,
        *(f"{name}{suffix}" for name in ("samples", "asvs") for suffix in suffixes),
    ]
    outputs += [
        f"{metric}{suffix}"
        for metric in config.distances
        for suffix in (f".{config.format}", ".ids.txt")
    ]
    outputs += [
        f"pcoa-{metric}{suffix}" for metric in config.distances for suffix in (".svg", ".png")
    ]
    output = OutputFolder(folder, "embed", outputs, [*files.values()], config.runtime.overwrite)
    output.check()
    models = prepare_models(config.model, config.runtime)
    only_places = len(models) == 1 and models[0].only_places
    on_tree = placed_samples(models, config) if config.distances or only_places else None
    colours = None if on_tree is None else _colours(config, on_tree.sample_ids)
    embedding = None if only_places else open_embedding(models, config)
    with output.replaced(describe("embed", to_dict(config), files, {})) as new:
        if on_tree is not None:
            _write_distances(new, on_tree, config, colours)
            if only_places:
                _write_vectors(
                    new, "samples", on_tree.sample_ids, on_tree.vectors(), WIDTH, config.format
                )
                _write_taxa(new, _placed_taxa(on_tree))
            parts = [*["vectors"] * only_places, *config.distances]
            log.info("%s: %s of %d samples", folder, shown(parts), len(on_tree.sample_ids))
        if embedding is not None:
            _write_all_vectors(new, embedding, config.format)
            table = embedding.study.table
            log.info(
                "%s: %d samples and %d ASVs", folder, len(table.sample_ids), len(table.sequences)
            )


def _write_all_vectors(folder: Path, embedding: Embedding, form: str) -> None:
    """Write the vectors of samples and of ASVs."""
    table, asvs = embedding.study.table, embedding.asvs.vectors
    _write_vectors(folder, "samples", table.sample_ids, embedding.samples(), embedding.width, form)
    parts = (part.cpu().numpy() for part in asvs.split(SAMPLES_OF_PART))
    _write_vectors(folder, "asvs", table.sequences, parts, embedding.width, form)
