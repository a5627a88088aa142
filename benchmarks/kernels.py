"""The ten kernels that cost most, attention apart, from the files of rocprofv3.

``python benchmarks/kernels.py FOLDER`` needs nothing but Python: jobs call it on a cluster.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

EXPECTED = "*kernel_stats.csv of rocprofv3 --kernel-trace --stats --output-format csv"
# Names of attention kernels: of AOTriton, of CK and CUTLASS, and of flash attention.
ATTENTION = re.compile(r"attn|attention|fmha|flash|bwd_kernel_d|bwd_preprocess", re.IGNORECASE)
# How many kernels are listed.
LISTED_KERNELS = 10


def read_kernels(path: Path) -> dict[str, float]:
    """Return the seconds of each kernel, longest first, from a file ``*_kernel_stats.csv``, or from
    the folder that rocprofv3 wrote; `ValueError` without kernels.
    """
    seconds: Counter[str] = Counter()
    try:
        for file in sorted(path.rglob("*kernel_stats.csv")) if path.is_dir() else [path]:
            with file.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines):
                    seconds[row["Name"]] += float(row["TotalDurationNs"]) / 1e9  # type: ignore[assignment]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: no kernels can be read ({error}); expected {EXPECTED}") from None
    if not seconds:
        raise ValueError(f"{path}: no kernels can be read; expected {EXPECTED}")
    return dict(seconds.most_common())


def kernel_table(kernels: Mapping[str, float]) -> list[str]:
    """Return lines with the ten kernels that cost most, attention apart."""
    total = sum(kernels.values())
    attention = {name: seconds for name, seconds in kernels.items() if ATTENTION.search(name)}
    remainder = {name: seconds for name, seconds in kernels.items() if name not in attention}
    lines = [f"kernels: {total:.3g} s, attention {sum(attention.values()) / total:.1%}"]
    for title, group in (("attention", attention), ("other", remainder)):
        for name, seconds in [*group.items()][:LISTED_KERNELS]:
            share = f"{1e3 * seconds:10.2f} ms {seconds / total:6.1%}"
            lines.append(f"{title:<10} {name[:60]:<60} {share}")
    return lines


def main() -> int:
    """Print the table of the path on the command line."""
    try:
        print("\n".join(kernel_table(read_kernels(Path(sys.argv[1])))))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
