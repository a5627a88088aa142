"""Samples with the very same reads under different ids."""

from __future__ import annotations

import hashlib

from aam.data.split import Split
from aam.data.table import SampleTable
from aam.errors import shown


def duplicates_across_subsets(table: SampleTable, split: Split) -> tuple[str, ...]:
    """Return a warning where samples with the very same reads are both held out and learned from, or nothing."""
    held_out = set(split.held_out)
    same_reads = dict[bytes, list[str]]()
    for row, name in enumerate(table.sample_ids):
        columns, reads = table.row(row)
        digest = hashlib.sha256(columns.tobytes() + reads.tobytes()).digest()
        same_reads.setdefault(digest, []).append(name)
    across = [names for names in same_reads.values() if 0 < len(held_out.intersection(names)) < len(names)]
    if not across:
        return ()
    fold = f" of fold {split.test_fold}" if split.test_fold else ""
    return (
        f"{sum(len(held_out.intersection(names)) for names in across)} held-out samples{fold} have the very reads of "
        f"others that were learned from: {shown(across[0])}; one sample under two ids? "
        "--group-column keeps it together",
    )
