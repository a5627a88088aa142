"""Whether two runs are the same."""

from __future__ import annotations

import json
from pathlib import Path

# What may differ in metrics.jsonl between two runs of one commit and one seed.
TIMES = ("seconds", "samples_per_s")


def history(run: Path) -> list[dict[str, object]]:
    """The records of a run without times."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def assert_same_run(first: Path, second: Path) -> None:
    """Compare the records and the weights of two runs bit for bit."""
    assert repr(history(first)) == repr(history(second))
    names = {path.relative_to(first) for path in first.rglob("*.safetensors")}
    assert names
    assert names == {path.relative_to(second) for path in second.rglob("*.safetensors")}
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
