"""Power and false alarms of the search for columns that name donors, by cell.

    python -m benchmarks.donors [--draws 40] [--studies infant-age ibd]

Each draw takes some donors of a public study (below AAM_BENCH_DATA) and some samples of each.
`found` is the share of draws in which the donors are found, and `others` that of another column,
such as a site or a study. `dealt` and `nested` are false alarms: names without a meaning, dealt at
random and at random within the values of another column.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd

from aam.data.columns import Column, read_column
from aam.data.donors import find_donors, likeness_of
from aam.data.inputs import metadata_from, table_from
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.typing import Ints

DONORS = {
    "infant-age": "host_subject_id",
    "mackerel-type": "fish",
    "ibd": "host_subject_id",
    "qiime2-crc": "subject",
    "braces": "",
    "oral-age": "",
    "cohorts": "",
}
NUMBERS, SAMPLES = (6, 8, 10, 20, 40), (1, 2, 3, 5, 10)


def read_study(name: str) -> tuple[AmpliconTable, Metadata]:
    """The table and metadata of a study."""
    folder = Path(os.environ["AAM_BENCH_DATA"]) / name
    file = next(path for path in (folder / "table.biom", folder / "table.qza") if path.exists())
    frame = pd.read_csv(folder / "metadata.tsv", sep="\t", dtype=str, index_col=0).fillna("")
    frame = frame.drop(columns="fold", errors="ignore")
    return table_from(file, need_sequences=False), metadata_from(frame)


def rows_of_donors(values: Ints, number: int, samples: int, random: np.random.Generator) -> Ints:
    """Rows of some samples of some donors; empty if there are too few."""
    enough = np.flatnonzero(np.bincount(values[values >= 0]) >= samples)
    if len(enough) < number:
        return np.zeros(0, np.int64)
    chosen = random.choice(enough, number, replace=False)
    rows = [random.choice(np.flatnonzero(values == c), samples, replace=False) for c in chosen]
    return np.concatenate(rows)


def draw(
    table: AmpliconTable,
    metadata: Metadata,
    donors: str,
    cell: tuple[int, int],
    random: np.random.Generator,
) -> list[float] | None:
    """Whether donors, other columns, dealt names and names dealt within a column are found."""
    number, samples = cell
    known = [name for name in table.sample_ids if name in metadata]
    values = random.permutation(np.arange(len(known)) // samples)
    values = read_column(metadata, donors, known).codes if donors else values
    rows = rows_of_donors(values, number, samples, random)
    if not len(rows):
        return None
    ids = [known[row] for row in rows]
    columns = [read_column(metadata, name, ids) for name in metadata.columns]
    alike = likeness_of(table.counts[[table.row_of[name] for name in ids]])

    def donors_among(columns: list[Column]) -> set[str]:
        return {x.column.name for x in find_donors(columns, alike) if not x.is_ordered}

    named, names = donors_among(columns), np.repeat(np.arange(number), samples)
    within = columns[random.integers(len(columns))].strata
    nested = np.empty_like(names)
    nested[np.lexsort((random.random(len(names)), within))] = names
    missing = np.full(len(names), np.nan)
    dealt = [Column("dealt", x, missing) for x in (random.permutation(names), nested)]
    alarms = ["dealt" in donors_among([*columns, column]) for column in dealt]
    return [donors in named if donors else np.nan, bool(named - {donors}), *alarms]


def main() -> None:
    """Print a row per study and cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--studies", nargs="+", default=[*DONORS], choices=[*DONORS])
    options = parser.parse_args()
    print("study donors samples found others dealt nested seconds", flush=True)
    for study in options.studies:
        table, metadata = read_study(study)
        for cell in ((number, samples) for number in NUMBERS for samples in SAMPLES):
            random, start = np.random.default_rng(cell), time.perf_counter()
            drawn = [
                draw(table, metadata, DONORS[study], cell, random) for _ in range(options.draws)
            ]
            if None in drawn:
                continue
            shares = " ".join(f"{x:.3f}" for x in np.array(drawn, float).mean(axis=0))
            seconds = (time.perf_counter() - start) / options.draws
            print(study, *cell, shares, f"{seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
