"""Each command that an audit prints is one that `aam train` takes, on thirty tables."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from aam.cli import main
from aam.data.inputs import table_from

DONORS, VISITS, FEATURES = 12, 4, 60
ROWS = np.arange(DONORS * VISITS)
DONOR, VISIT = ROWS % DONORS, ROWS // DONORS

EXAMPLE = Path(__file__).parents[2] / "examples/infant-age"
DATA = os.environ.get("AAM_BENCH_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="AAM_BENCH_DATA names no folder of studies")


def synthetic(seed=0):
    """Counts of donors with features of their own, and metadata with a number and classes."""
    rng = np.random.default_rng(seed)
    own = rng.dirichlet(np.full(FEATURES, 0.3), DONORS)[DONOR]
    shares = 0.5 * own + 0.5 * rng.dirichlet(np.full(FEATURES, 0.3), len(ROWS))
    counts = np.array([rng.multinomial(900 + 3 * row, p) for row, p in enumerate(shares)])
    ids = [f"x{row}" for row in ROWS]
    table = pd.DataFrame(counts, ids, [f"OTU{column}" for column in range(FEATURES)])
    metadata = pd.DataFrame(index=ids)
    metadata["ph"] = np.round(rng.normal(7, 1, len(ROWS)), 2)
    metadata["arm"] = np.where(rng.permutation(DONORS) < DONORS // 2, "drug", "placebo")[DONOR]
    metadata["diagnosis"] = rng.choice(["ill", "well"], len(ROWS))
    return table, metadata


def last_lines(table, metadata, folder, words, capfd):
    """What an audit prints: whether a command follows, and the line."""
    table.T.to_csv(folder / "t.tsv", sep="\t", index_label="#OTU ID")
    metadata.to_csv(folder / "m.tsv", sep="\t", index_label="sample-id")
    capfd.readouterr()
    assert main(["audit", str(folder / "t.tsv"), str(folder / "m.tsv"), *words]) == 0
    lines = capfd.readouterr().err.splitlines()
    return lines, lines[-1].strip() if lines[-2:-1] == ["Recommended:"] else ""


def group_of(command, folder, monkeypatch):
    """The group column of a command, which is run with ``--dry-run``; None without a command."""
    if not command:
        return None
    monkeypatch.chdir(folder)
    program, *words = shlex.split(command)
    assert program == "aam"
    assert main([*words, "--dry-run", "--device", "cpu"]) == 0, command
    pairs = (
        " ".join(words).replace("--group-column=", "--group-column ").partition("--group-column ")
    )
    return pairs[2].removesuffix(" --output-dir run").partition(" --study-column")[0]


NAMES = ("mouse", "days since start", "stage", "Kind (No.)", "n", "house_number", "-x", "Spüler")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["ph", "arm"])
def test_one_donor_column_is_recommended(name, target, tmp_path, capfd, monkeypatch):
    table, metadata = synthetic()
    metadata[name] = DONOR if target == "ph" else [f"d{donor}" for donor in DONOR]
    words = ["--metadata-column", target, "--rarefy-depth", "500"]
    lines, command = last_lines(table, metadata, tmp_path, words, capfd)
    assert not any("No column that may name donors" in line for line in lines)
    assert group_of(command, tmp_path, monkeypatch) == name


def visits(metadata):
    metadata["mouse"], metadata["days"] = DONOR, 7 * VISIT + DONOR % 2


def gaps(metadata):
    metadata["mouse"] = DONOR
    metadata.loc[metadata.index[::9], "diagnosis"] = ""


def binned(metadata):
    metadata["mouse"] = DONOR
    metadata["stage"] = np.where(ROWS % 5 == 0, "", np.where(metadata["ph"] > 7, "late", "early"))


def reused(metadata):
    metadata["mouse"], metadata["study"] = DONOR % 6, np.where(DONOR < 6, "A", "B")


def twins(metadata):
    metadata["mouse"], metadata["cage"] = DONOR, [f"c{donor // 2}" for donor in DONOR]


def partial(metadata):
    metadata["mouse"] = np.where(ROWS % 7 == 0, "", DONOR.astype(str))


def same(metadata):
    metadata["mouse"], metadata["Mouse name"] = DONOR, [f"M{donor}" for donor in DONOR]


def none(metadata):
    metadata["tube"] = np.random.default_rng(3).permutation(ROWS) % 12


SHAPES = {
    visits: (("ph",), "mouse"),
    gaps: (("diagnosis",), "mouse"),
    binned: (("ph",), "mouse"),
    reused: (("ph", "--study-column", "study"), "mouse"),
    twins: (("arm",), "mouse"),
    partial: (("ph",), "mouse"),
    same: (("diagnosis",), "mouse"),
    none: (("ph",), None),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_metadata(shape, tmp_path, capfd, monkeypatch):
    table, metadata = synthetic(1)
    shape(metadata)
    words, name = SHAPES[shape]
    words = ["--metadata-column", *words, "--rarefy-depth", "500"]
    lines, command = last_lines(table, metadata, tmp_path, words, capfd)
    assert group_of(command, tmp_path, monkeypatch) == name
    if name is None:
        assert any("No column that may name donors" in line for line in lines)


class Public(NamedTuple):
    """A part of a public study: its folder, target and donors, and how many of them."""

    folder: str
    target: str
    donors: str
    number: int
    samples: int = 3


PUBLIC = {
    "infants month": Public("infant-age", "month", "host_subject_id", 24),
    "infants delivery": Public("infant-age", "delivery", "host_subject_id", 20, 5),
    "mackerel type": Public("mackerel-type", "sample_type", "fish", 40),
    "mackerel season": Public("mackerel-type", "season", "fish", 40, 4),
    "ibd": Public("ibd", "ibd", "host_subject_id", 14),
    "adults sex": Public("qiime2-crc", "sex", "subject", 40, 2),
    "adults arm": Public("qiime2-crc", "arm", "subject", 60, 2),
}


def public_part(part: Public):
    """The samples of some donors, and the 300 features that most of them have."""
    folder = EXAMPLE if part.folder == "infant-age" else Path(DATA or "") / part.folder
    name = "table.qza" if part.folder == "qiime2-crc" else "table.biom"
    table = table_from(folder / name, need_sequences=False)
    metadata = pd.read_csv(folder / "metadata.tsv", sep="\t", dtype=str, index_col=0).fillna("")
    metadata = metadata.loc[[x for x in metadata.index if x in table.row_of]].drop(columns="fold")
    sizes = metadata[part.donors].value_counts()
    donors = np.random.default_rng(0).permutation(sorted(sizes.index[sizes >= part.samples]))
    metadata = metadata[metadata[part.donors].isin(donors[: part.number])]
    metadata = metadata.groupby(part.donors).head(part.samples)
    counts = table.counts[[table.row_of[x] for x in metadata.index]].toarray()
    most = np.argsort(-(counts > 0).sum(axis=0), kind="stable")[:300]
    features = [f"f{column}" for column in most]
    return pd.DataFrame(counts[:, most], metadata.index, features), metadata


@needs_data
def test_donors_of_seven_public_tables_are_found(tmp_path, capfd, monkeypatch):
    recommended = 0
    for name, part in PUBLIC.items():
        folder = tmp_path / name
        folder.mkdir()
        table, metadata = public_part(part)
        words = ["--metadata-column", part.target]
        lines, command = last_lines(table, metadata, folder, words, capfd)
        rows = [line for line in lines if line.startswith(f"{part.donors} ")]
        assert any(row.endswith("may name donors") for row in rows), (name, lines)
        group = group_of(command, folder, monkeypatch)
        assert group in (None, part.donors), name
        recommended += group is not None
    assert recommended >= 5
