"""The variable region of 16S before which a read begins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aam.data.primers import MISMATCHES, PRIMERS, mismatches
from aam.typing import Tokens

# The letters of the other strand: A for T, of several letters the one that means their complements.
OTHER_STRAND = str.maketrans("ACGTRYKMBDHV", "TGCAYRMKVHDB")

# Where sites begin on the gene of Escherichia coli: those of primers, and in their complement of
# reverse ones.
SITES = {"341F": 341, "515F": 515, "806R": 787, "926R": 907}

# Where the middles of the variable regions lie there (Chakravorty et al. 2007).
VARIABLE = {
    "V1": 84,
    "V2": 190,
    "V3": 465,
    "V4": 629,
    "V5": 850,
    "V6": 1015,
    "V7": 1145,
    "V8": 1269,
    "V9": 1450,
}


def first_regions(references: Tokens, shift: npt.NDArray[np.int64]) -> list[str]:
    """Return the variable region before which each of some sequences begins, '' where that is not
    known.

    Parameters
    ----------
    references : uint8 [F, M]
        One sequence like each of them that is nearly the whole gene.
    shift : int64 [F]
        Where on its reference each of them begins.
    """
    sites = []
    for name, place in SITES.items():
        primer = PRIMERS[name]
        if name.endswith("R"):
            primer = primer[::-1].translate(OTHER_STRAND)
        misses = mismatches(references, primer).astype(np.int64)
        at = misses.argmin(axis=1)
        known = misses[np.arange(len(at)), at] <= 2 * MISMATCHES
        sites.append(np.where(known, shift - at + place, np.iinfo(np.int64).min))
    # The nearest site says most of where a sequence begins.
    starts = np.stack(sites, axis=1)
    distance = np.where(
        starts >= -1000, np.abs(starts - np.array([*SITES.values()])), np.iinfo(np.int64).max
    )
    nearest = distance.argmin(axis=1)
    chosen = starts[np.arange(len(starts)), nearest]
    names, middles = list(VARIABLE), np.array([*VARIABLE.values()])
    after = np.minimum(np.searchsorted(middles, chosen), len(names) - 1)
    return [
        names[at] if start >= -1000 else ""
        for at, start in zip(after.tolist(), chosen.tolist(), strict=True)
    ]
