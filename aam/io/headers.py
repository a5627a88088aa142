"""Names of the columns of tables: which name ids of samples or features, or nothing."""

from __future__ import annotations

import re
import unicodedata
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
DELETE_INDEX = "delete the first column (in pandas, to_csv(..., index=False))"


def folded(name: str) -> str:
    """Return a name without case, blanks and punctuation: ``#OTU ID`` and ``otu_id`` are
    ``otuid``.
    """
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", name).casefold())


def has_name(cell: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a cell is such a header, folded."""
    return bool(pattern.fullmatch(folded(cell)))


def is_id_header(cells: list[str]) -> bool:
    """Return whether a row is a header whose first cell names the column of ids."""
    is_remark = cells[0].startswith("# ") and len(cells) == 1
    return not is_remark and any(has_name(cells[0], p) for p in (SAMPLE_HEADER, FEATURE_HEADER))


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
