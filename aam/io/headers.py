"""Names of the columns of tables: which name ids of samples or features, lineages, or nothing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

# Names of the first column, without case, blanks and punctuation.
SAMPLE_HEADER = re.compile(
    "ids?|samples?|sample(ids?|names?|identifier)|participantid|runaccession|biosample"
)
SAMPLE_ID = re.compile("samples?(ids?|names?|identifiers?)")
FEATURE_HEADER = re.compile(
    "x?otuids?|z?otus?|zotuid|asvs?|asvids?|features?|featureids?|sequences?|seqs?|seq(uence)?id|"
    "hash|rownames?|unnamed0"
)
# What else the column of features is called in tables of reads.
TABLE_HEADER = re.compile(
    "genes?|geneids?|cladenames?|names?|species|genus|esvs?|tax(a|on|onomy|id)|lineage|clusters?|"
    "mags?|bins?|organisms?|representativesequence"
)
LINEAGE_HEADER = re.compile("taxon|taxonomy|lineage|consensuslineage|classification")

DELETE_INDEX = "delete the first column (in pandas, to_csv(..., index=False))"


def has_name(cell: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a cell is such a header: ``#OTU ID`` and ``otu_id`` are ``otuid``."""
    return bool(pattern.fullmatch(re.sub(r"[\W_]+", "", cell.lower())))


def is_id_header(cells: list[str]) -> bool:
    """Return whether a row is a header whose first cell names the column of ids."""
    is_remark = cells[0].startswith("# ") and len(cells) == 1
    return not is_remark and any(has_name(cells[0], p) for p in (SAMPLE_HEADER, FEATURE_HEADER))


def is_sample_header(cell: str) -> bool:
    """Return whether a cell says that ids are those of samples."""
    return has_name(cell, SAMPLE_HEADER) and not has_name(cell, re.compile("ids?"))


def is_lineage_header(cell: str) -> bool:
    """Return whether a cell names a column of taxonomy."""
    return has_name(cell, LINEAGE_HEADER)


def row_numbers(header: Sequence[str], ids: Sequence[str], remedy: str = DELETE_INDEX) -> str:
    """Describe a first column that numbers the rows next to a column of ids, as pandas writes a
    DataFrame with its index; "" for any other column.
    """
    is_index = not header[0] or has_name(header[0], re.compile("unnamed0|rownames?|index"))
    names = [cell for cell in header[1:2] if has_name(cell, SAMPLE_HEADER)]
    names += [cell for cell in header[2:] if has_name(cell, SAMPLE_ID)]
    column = names[0] if names else ""
    numbers = [[str(number + start) for number in range(len(ids))] for start in (0, 1)]
    if not (is_index and column and [*ids] in numbers):
        return ""
    return f"the first column numbers the rows, and the ids are in column {column!r}; {remedy}"


def is_real(cell: str) -> bool:
    """Return whether a cell is a number, or nan or inf; 1_0, which Python reads as 10, is none."""
    with contextlib.suppress(ValueError):
        float(cell.replace("_", "?"))
        return True
    return False


def are_names_of_r(cells: list[str]) -> bool:
    """Return whether cells are V1, V2 and so on, as R calls the columns of a table without names;
    the first may be empty.
    """
    names = cells if cells[0] else cells[1:]
    return len(names) > 1 and names == [f"V{number}" for number in range(1, len(names) + 1)]


def stands_above_counts(cells: list[str], below: list[str]) -> bool:
    """Return whether a row names columns of the row below, at least half of which hold numbers, and
    is text itself or begins with a `TABLE_HEADER`.
    """
    numbers = sum(map(is_real, below[1:]))
    if len(below) != len(cells) or numbers == 0 or 2 * numbers < len(cells) - 1:
        return False
    return has_name(cells[0], TABLE_HEADER) or not all(map(is_real, cells[1:]))
