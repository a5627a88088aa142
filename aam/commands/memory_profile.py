"""`--memory-profile`: memory of each stage of a command."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from aam.device.memory import StageMemory, child_peak_memory, memory_limit
from aam.device.platform import choose_device
from aam.errors import InputError
from aam.files.atomic import atomic_file, check_writable, write_text

log = logging.getLogger("aam")

STAGES = ("model creation", "transfer", "forward", "backward", "step")


def memory_profiled(run: Callable[[Any], Any], config: Any) -> Any:
    """Run a command, then write memory.json and memory.png to its output folder, also when memory was too little."""
    runtime = getattr(config, "runtime", config)
    device = choose_device(getattr(runtime, "device", "cpu"))
    folder = getattr(runtime, "output_dir", None)
    if folder is None:
        output = getattr(config, "output", None) or Path("memory")
        folder = output if output.suffix == "" else output.with_suffix(".memory")
        check_writable(folder, getattr(runtime, "overwrite", False))
    peaks: dict[str, dict[str, int]] = {}
    try:
        with StageMemory(device, STAGES) as peaks:
            return run(config)
    except InputError:
        # Nothing was computed, and the folder may be another's.
        peaks.clear()
        raise
    finally:
        if peaks:
            _write_memory(folder, peaks, device)


def _write_memory(folder: Path, peaks: dict[str, dict[str, int]], device: torch.device) -> None:
    limit, largest = memory_limit(device, 1.0), max(peak["peak_bytes"] for peak in peaks.values())
    report = {"stages": peaks, "limit_bytes": limit, "utilisation": largest / limit, "child_bytes": child_peak_memory()}
    import altair as alt

    rows = [{"stage": stage, "memory": peak["peak_bytes"] / 1e9} for stage, peak in peaks.items()]
    chart = alt.Chart(alt.InlineData(values=rows), width=500).mark_bar()
    chart = chart.encode(x=alt.X("memory:Q", title="most memory, GB"), y=alt.Y("stage:N", title=None, sort=None))
    with atomic_file(folder / "memory.png") as temporary:
        chart.save(temporary, format="png")
    write_text(folder / "memory.json", json.dumps(report, indent=1) + "\n")
    log.info("memory: %.2f of %.2f GB, %s", largest / 1e9, limit / 1e9, folder / "memory.json")
