"""Vectors of samples and ASVs, and distances between samples, of a model and a table."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.api.apply import load_table, prepare_models
from aam.config_commands import EmbedConfig, NearestConfig
from aam.data.placement import ReferenceTree, SoftPlacement
from aam.data.rarefaction import rarefied_table
from aam.data.study import Inputs, Study
from aam.data.tokens import Tokens
from aam.device.options import RuntimeConfig
from aam.diversity.placed import (
    PlacedDistance,
    PlacedMetric,
    placed_between,
    placed_tiles,
    sample_branches,
    sample_vectors,
)
from aam.encoders import shipped_encoders
from aam.errors import InputError, shown
from aam.files.atomic import atomic_file
from aam.io.matrices import Tile
from aam.options import given
from aam.predict.network import SAMPLES_OF_PART, AsvVectors, encode_table, run_model
from aam.predict.saved_model import SavedModel

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("aam")

# Of how many ASVs the region is looked up, and the share of them from which a region is named.
ASVS_OF_REGIONS, LEAST_SHARE = 300, 0.05

COMPLEMENT = str.maketrans("ACGT", "TGCA")


@dataclass(frozen=True, eq=False)
class PlacedSamples:
    """All reads and rarefied ones, `counts`, of samples whose ASVs stand on a tree, `reference`:
    CSR ``[N, F]``.
    """

    sample_ids: tuple[str, ...]
    sequences: tuple[str, ...]
    reads: sparse.csr_matrix
    counts: sparse.csr_matrix
    placement: SoftPlacement
    reference: ReferenceTree

    def distances(self, metric: PlacedMetric) -> Iterator[Tile]:
        """Yield the distances between samples in tiles on and above the diagonal."""
        return placed_tiles(
            self.counts, *self.placement.with_words, self.placement.own_length, metric
        )

    def branches(self, metric: PlacedMetric) -> npt.NDArray[np.float32]:
        """Return what samples have of each branch of the reference, float32 ``[N, E]``
        (`sample_branches`).
        """
        return sample_branches(self.counts, self.placement.probability, metric)

    def vectors(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the vectors of samples, some at a time (`sample_vectors`)."""
        placement = self.placement
        strands = zip(self.sequences, placement.turned.tolist(), strict=True)
        read = [
            sequence.translate(COMPLEMENT)[::-1] if turned else sequence
            for sequence, turned in strands
        ]
        yield from sample_vectors(self.counts, *placement.with_words, placement.own_length, read)


@dataclass(frozen=True, eq=False)
class Embedding:
    """A model and a table whose samples are embedded part by part; the vectors of the ASVs ``[F,
    D]`` are there.
    """

    saved: SavedModel
    study: Study
    asvs: AsvVectors
    runtime: RuntimeConfig

    @property
    def width(self) -> int:
        """Return the width of every vector."""
        return self.asvs.vectors.shape[1]

    def samples(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the vectors of all samples in the order of the table, those of some thousands at a
        time.
        """
        rows = np.arange(len(self.study.table.sample_ids))
        for start in range(0, len(rows), SAMPLES_OF_PART):
            some, device = rows[start : start + SAMPLES_OF_PART], self.asvs.vectors.device
            predicted = run_model(
                self.saved.required_network, self.study, some, device, self.runtime, asvs=self.asvs
            )
            yield predicted.samples.astype(np.float32)


def open_embedding(
    models: Sequence[SavedModel], config: EmbedConfig, inputs: Inputs | None = None
) -> Embedding:
    """Encode the ASVs of a table: that of `inputs`, or of the file that `config` names.

    Raises
    ------
    InputError
        Several models, or a bad table.
    """
    if len(models) > 1:
        raise InputError(
            f"--model: {len(models)} models, each with vectors of its own; name one of them"
        )
    (saved,) = models
    network = saved.required_network
    study, _ = load_table(models, config, inputs)
    asvs = encode_table(network, study, saved.device, config.runtime)
    study = study.with_covariates(saved.covariates, None).placed_on(saved.reference)
    return Embedding(saved, study, asvs, config.runtime)


def placed_samples(
    models: Sequence[SavedModel], config: EmbedConfig, inputs: Inputs | None = None
) -> PlacedSamples:
    """Rarefy a table, of `inputs` or of `config`, and place its ASVs on the reference tree of a
    model.

    Raises
    ------
    InputError
        Several models, one without a reference tree, a bad table, or one that holds no 16S.
    """
    if len(models) > 1 or models[0].reference is None:
        raise InputError(
            "--model: distances on a reference tree need one model, which has such a tree: "
            f"{shown(shipped_encoders())}, or one pretrained with --reference-tree"
        )
    study, _ = load_table(models, config, inputs)
    placement = models[0].reference.place_softly(study.tokens.numpy())
    counts = rarefied_table(study)
    strange, turned = ~placement.is_16s, placement.turned & placement.is_16s
    if turned.any():
        log.warning(
            "%d of %d ASVs are reverse complements and were turned", turned.sum(), len(turned)
        )
    placement.check_16s(counts, str(config.table))
    if strange.any():
        log.warning(
            "%d of %d ASVs are no 16S and are left out of distances", strange.sum(), len(strange)
        )
    _warn_of_regions(models[0].reference, study.tokens.numpy(), placement)
    sequences, reads = tuple(study.table.sequences), sparse.csr_matrix(study.table.counts)
    return PlacedSamples(
        study.table.sample_ids, sequences, reads, counts, placement, models[0].reference
    )


def _warn_of_regions(reference: ReferenceTree, tokens: Tokens, placement: SoftPlacement) -> None:
    """Say of which regions the ASVs of a table are, where they are of several."""
    rows = np.flatnonzero(placement.is_16s)
    rows = rows[:: max(len(rows) // ASVS_OF_REGIONS, 1)]
    regions = Counter(reference.first_regions(tokens[rows], placement.at(rows)))
    del regions[""]
    shares = {name: number / regions.total() for name, number in regions.most_common()}
    named = [
        f"{share:.0%} begin before {name}" for name, share in shares.items() if share > LEAST_SHARE
    ]
    if len(named) > 1:
        log.warning(
            "warning: the ASVs are of several regions: %s; UniFrac between samples of different "
            "regions is too long; "
            "aam search compares them by what they share",
            ", ".join(named),
        )


def distances_between(
    samples: PlacedSamples, collection: PlacedSamples, distance: PlacedDistance
) -> Iterator[Tile]:
    """Yield the distances of samples to those of a collection in tiles, row after row of them
    (`placed_between`).

    The cosine is of all reads of a sample, so that it is as sure as they allow; UniFrac is of
    rarefied ones.
    """
    column_of = {sequence: column for column, sequence in enumerate(samples.sequences)}
    new = [at for at, sequence in enumerate(collection.sequences) if sequence not in column_of]
    column_of |= {collection.sequences[at]: len(column_of) + place for place, at in enumerate(new)}
    one, other = samples.placement, collection.placement
    # An ASV of both tables has one branch of its own.
    columns = np.array([column_of[sequence] for sequence in collection.sequences])
    width = len(column_of)
    left, right = (
        each.reads if distance == "cosine" else each.counts for each in (samples, collection)
    )
    left, right = left.copy(), right.copy()
    right.indices = columns[right.indices].astype(right.indices.dtype)
    left.resize(len(samples.sample_ids), width)
    right.resize(len(collection.sample_ids), width)
    # 8-mers of two regions are others, so that they have no part where regions are compared.
    both = [
        (each.probability, each.length) if distance == "cosine" else each.with_words
        for each in (one, other)
    ]
    probability = sparse.vstack([both[0][0], both[1][0][new]]).tocsr()
    own_length = np.concatenate([one.own_length, other.own_length[new]])
    return placed_between(left, right, probability, both[0][1], own_length, distance)


def nearest_samples(
    samples: PlacedSamples, among: PlacedSamples | None, distance: PlacedDistance, k: int
) -> pd.DataFrame:
    """Return the `k` samples of a collection that are nearest to each sample, found by comparing
    with all of them.

    Without a collection these are other samples of the same table. Columns are ``sample-id``,
    ``rank`` from 1, ``neighbour`` and ``distance``; the nearest comes first, equal ones come in the
    order of the collection.
    """
    # The import takes half a second, and other commands make no DataFrame.
    import pandas as pd

    collection = among or samples
    if among is None and len(samples.sample_ids) < 2:
        raise InputError(
            "--among: the table itself, which has one sample, and that does not find itself; "
            "name another"
        )
    k = min(k, len(collection.sample_ids) - (among is None))
    tiles = distances_between(samples, collection, distance)
    parts = [
        _nearest(at, some, k, among is None)
        for at, some in itertools.groupby(tiles, key=lambda tile: tile[0])
    ]
    rows, distances = (np.concatenate(each) for each in zip(*parts, strict=True))
    return pd.DataFrame(
        {
            "sample-id": np.repeat(np.array(samples.sample_ids, object), k),
            "rank": np.tile(np.arange(1, k + 1), len(rows)),
            "neighbour": np.array(collection.sample_ids, object)[rows.ravel()],
            "distance": [round(value, 6) for value in distances.ravel().tolist()],
        }
    )


def _nearest(
    rows: slice, tiles: Iterable[Tile], k: int, itself: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return places in the collection and distances of the `k` nearest of some rows, from the tiles
    of these.
    """
    places = np.zeros((rows.stop - rows.start, 0), np.int64)
    distances = np.zeros(places.shape, np.float32)
    for _, columns, tile in tiles:
        of_tile = np.arange(columns.start, columns.stop)
        if itself:
            tile = np.where(
                of_tile == np.arange(rows.start, rows.stop)[:, None], np.inf, tile
            ).astype(np.float32)
        places = np.concatenate([places, np.broadcast_to(of_tile, tile.shape)], axis=1)
        distances = np.concatenate([distances, tile], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        places, distances = (
            np.take_along_axis(each, order, axis=1) for each in (places, distances)
        )
    return places, distances


def search(config: NearestConfig) -> None:
    """Write the nearest samples of a collection, a row for each, nearest first.

    Raises
    ------
    InputError
        A model without a reference tree, bad tables, or an output that exists.
    """
    output, table, collection = given(config.output), given(config.table), given(config.among)
    shared = {
        name: getattr(config, name)
        for name in ("model", "sequences", "trim", "trim_primers", "runtime")
    }
    models = prepare_models(config.model, config.runtime)
    samples = placed_samples(models, EmbedConfig(table=table, **shared))
    itself = table.samefile(collection)
    others = None if itself else placed_samples(models, EmbedConfig(table=collection, **shared))
    found = nearest_samples(samples, others, config.distance, config.nearest)
    with atomic_file(output) as temporary:
        found.to_csv(temporary, sep="\t", index=False, lineterminator="\n")
    number, of_all = len(samples.sample_ids), len((others or samples).sample_ids)
    log.info(
        "%s: the nearest %d of %d samples for each of %d",
        output,
        found["rank"].max(),
        of_all,
        number,
    )
