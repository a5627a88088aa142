"""Types of arrays, ids and saved values, each with one meaning everywhere. Shapes stand in
docstrings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Len

# Numbers: of targets, distances, predictions.
Floats: TypeAlias = npt.NDArray[np.float64]

# Numbers as the network takes and returns them.
Reals: TypeAlias = npt.NDArray[np.float32]

# Whole numbers: classes, places, numbers of reads.
Ints: TypeAlias = npt.NDArray[np.int64]

# Rows of a table, each the number of a sample.
Rows: TypeAlias = npt.NDArray[np.int64]

# Whole numbers of any width, such as reads in the type of their file.
Integers: TypeAlias = npt.NDArray[np.integer[Any]]

Bools: TypeAlias = npt.NDArray[np.bool_]

# Classes, groups and ids as text.
Names: TypeAlias = npt.NDArray[np.str_]

# Nucleotides, one code each.
Tokens: TypeAlias = npt.NDArray[np.uint8]

# 64-bit hashes of sequences, samples and random keys.
Hashes: TypeAlias = npt.NDArray[np.uint64]

# Values of any type.
Array: TypeAlias = npt.NDArray[Any]

# Ids of samples or ASVs, or names of columns.
Ids: TypeAlias = Sequence[str]

PathLike: TypeAlias = str | os.PathLike[str]

# Values of options as keywords.
OptionValue: TypeAlias = PathLike | float | Sequence[PathLike] | None

# Values that a saved model may hold.
Label = Annotated[str, Len(1, 10_000)]
Number = Annotated[float, Ge(-1e38), Le(1e38)]
PositiveNumber = Annotated[float, Gt(0), Le(1e38)]
SmallNumber = Annotated[float, Ge(0), Le(1e9)]
Proportion = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(0), Le(2**31)]
PositiveCount = Annotated[int, Ge(1), Le(2**31)]
