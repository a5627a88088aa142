"""Prepared tables: a table, its sequences and its tree in one safetensors file that is mapped into memory."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from aam.data.texts import Selected, Texts
from aam.errors import InputError
from aam.files.atomic import BLOCK, file_digest
from aam.io.phylogeny import Ints, Phylogeny

log = logging.getLogger("aam")

# Follows the name of a table whose prepared form lies beside it.
SUFFIX = ".prepared"
FORMAT = "1"
MARK = b'{"__metadata__": {"aam-table": '
MAX_HEADER = 1 << 20
DTYPES: dict[str, Any] = {
    "F64": np.float64, "I64": np.int64, "I32": np.int32, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8
}  # fmt: skip
AGAIN = "run `aam prepare --overwrite` again"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """The content of a prepared table, mapped from its file.

    Attributes
    ----------
    about : dict of str
        Checksums of the table, the sequences and the tree that it was made from, and how.
    counts : csr [N, F]
    sample_ids, feature_ids, sequences : sequences of str
        As those of `aam.data.table.SampleTable`.
    tokens : uint8 [F, L]
    lengths : int64 [F]
        Nucleotides of each ASV.
    tree, tips : Phylogeny and int64 [F], optional
        Pruned to the table, and the tip of each ASV, -1 without.
    """

    about: Mapping[str, str]
    counts: csr_array
    sample_ids: tuple[str, ...]
    feature_ids: Sequence[str]
    sequences: Sequence[str]
    tokens: npt.NDArray[np.uint8]
    lengths: Ints
    tree: Phylogeny | None = None
    tips: Ints | None = None

    def tree_of(self, path: Path, midpoint: bool) -> tuple[Phylogeny, Ints] | None:
        """Return the pruned tree and the tip of each ASV where they were prepared from this tree, so rooted."""
        if self.tree is None or self.tips is None or self.about["midpoint"] != str(int(midpoint)):
            return None
        return (self.tree, self.tips) if file_digest(path) == self.about["tree_sha256"] else None


def is_prepared(path: Path) -> bool:
    """Return whether a file is a prepared table, whatever it is called."""
    try:
        with path.open("rb") as file:
            return file.read(8 + len(MARK))[8:] == MARK
    except OSError:
        return False


def _read_header(path: Path) -> tuple[dict[str, str], dict[str, Any], int]:
    """Return what a file says of itself, the layout of its arrays, and where these begin."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size <= MAX_HEADER:
                raise ValueError(f"a header of {size} bytes")
            layout = json.loads(file.read(size))
        about = layout.pop("__metadata__")
        if about["aam-table"] != FORMAT:
            raise InputError(f"{path}: format {about['aam-table']}, this aam reads {FORMAT}; {AGAIN}")
        expected = 8 + size + max(entry["data_offsets"][1] for entry in layout.values())
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: no readable prepared table ({error}); {AGAIN}") from None
    if (found := path.stat().st_size) != expected:
        raise InputError(f"{path}: {found} bytes, expected {expected}; the prepared table is cut off; {AGAIN}")
    return about, layout, 8 + size


def _check_digests(path: Path, about: Mapping[str, str], layout: Mapping[str, Any], start: int) -> None:
    """Raise `InputError` unless every array has its checksum: numbers out of bounds would end the process."""
    expected = json.loads(about["sha256"])
    with path.open("rb") as file:
        for name, entry in layout.items():
            first, last = entry["data_offsets"]
            file.seek(start + first)
            digest, left = hashlib.sha256(), last - first
            while left:
                digest.update(block := file.read(min(BLOCK, left)))
                left -= len(block)
            if digest.hexdigest() != expected.get(name):
                raise InputError(f"{path}: {name} is damaged (its checksum differs); {AGAIN}")


def _map(path: Path, layout: Mapping[str, Any], start: int) -> Arrays:
    arrays: Arrays = {}
    for name, entry in layout.items():
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        if not math.prod(shape):
            arrays[name] = np.zeros(shape, dtype)
            continue
        # Copy on write: torch refuses arrays that cannot be written, and nothing reaches the file.
        arrays[name] = np.asarray(np.memmap(path, dtype, "c", start + entry["data_offsets"][0], shape))
    return arrays


def map_prepared(path: Path) -> Prepared:
    """Map a prepared table into memory, its checksums compared first.

    Raises `InputError`: no prepared table, of another format, cut off or damaged.
    """
    about, layout, start = _read_header(path)
    try:
        _check_digests(path, about, layout, start)
        arrays = _map(path, layout, start)
        return _assembled(about, arrays)
    except (KeyError, ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: no readable prepared table ({error!r}); {AGAIN}") from None


def _assembled(about: Mapping[str, str], arrays: Arrays) -> Prepared:
    tokens, indptr = arrays["tokens"], arrays["indptr"]
    # As narrow as the columns, which SciPy would copy otherwise.
    counts = csr_array(
        (arrays["counts"], arrays["columns"], indptr.astype(np.int32)), shape=(len(indptr) - 1, len(tokens))
    )
    sequences = Texts(arrays["sequences"], arrays["sequence_ends"])
    features = Texts(arrays["features"], arrays["feature_ends"]) if "features" in arrays else sequences
    tree = tips = None
    if "parent" in arrays:
        tips = arrays["tips"]
        names = Selected(features, arrays["feature_of_tip"])
        tree = Phylogeny(arrays["parent"], arrays["length"], arrays["lo"], arrays["hi"], names)
    samples = tuple(Texts(arrays["samples"], arrays["sample_ends"]))
    lengths = np.diff(arrays["sequence_ends"])
    return Prepared(about, counts, samples, features, sequences, tokens, lengths, tree, tips)


def _mismatch(path: Path, about: Mapping[str, str], source: Path, sequences: Path | None, by_ids: bool) -> str:
    """Return why a prepared table does not stand for its source as it is asked for; empty text where it does."""
    if source != path and source.is_file() and not _is_same(source, about):
        return f"{path}: prepared from another {source.name} (its checksum differs)"
    if sequences is not None and file_digest(sequences) != about["sequences_sha256"]:
        return f"{path}: prepared with other --sequences than {sequences} (the checksum differs)"
    if by_ids and about["ids_are_sequences"] != "1":
        return f"{path}: prepared by sequences, and ids are asked for; pass the table that it was made from"
    return ""


def _is_same(source: Path, about: Mapping[str, str]) -> bool:
    return str(source.stat().st_size) == about["source_bytes"] and file_digest(source) == about["source_sha256"]


def find_prepared(path: Path, sequences: Path | None = None, by_ids: bool = False) -> Prepared | None:
    """Return the prepared table that `path` is, or the one beside it, or nothing.

    One beside the table that does not belong to it, or cannot be read, is left alone with a warning.

    Parameters
    ----------
    path : Path
    sequences : Path, optional
        FASTA file or .qza that was asked for beside the table.
    by_ids : bool
        Whether ids are read and not sequences.

    Raises
    ------
    InputError
        `path` is a prepared table that is damaged or does not belong to the table beside it.
    """
    is_own = is_prepared(path) or path.name.endswith(SUFFIX)
    file = path if is_own else path.with_name(path.name + SUFFIX)
    if not file.is_file():
        return None
    try:
        about = _read_header(file)[0]
        source = file.with_name(file.name.removesuffix(SUFFIX))
        if not is_own and sequences is None and about["sequences_sha256"]:
            raise InputError(f"{file}: prepared with --sequences, which are not given")
        if problem := _mismatch(file, about, source, sequences, by_ids):
            raise InputError(f"{problem}; {AGAIN}")
        return map_prepared(file)
    except InputError as error:
        if is_own:
            raise
        log.warning("warning: %s; %s itself is read", error, path)
        return None
