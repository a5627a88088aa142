"""`--memory-profile`: memory of each stage of a command."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from aam.data.batch import Batch
from aam.errors import InputError
from aam.model.aam import Aam
from aam.runtime.device import choose_device
from aam.runtime.files import check_writable, whole_file, write_text
from aam.runtime.memory import MemoryStages, largest_child, memory_limit

log = logging.getLogger("aam")


def memory_profiled(run: Callable[[Any], Any], config: Any) -> Any:
    """Run a command, then write memory.json and memory.png to its output folder, also when memory was too little."""
    runtime = getattr(config, "runtime", config)
    device = choose_device(getattr(runtime, "device", "cpu"))
    stages = MemoryStages(device)
    places = [(Aam, "__init__", "model creation"), (Batch, "to", "transfer"), (Aam, "forward", "forward")]
    optimizers = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)
    places += [(Tensor, "backward", "backward"), *((kind, "step", "step") for kind in optimizers)]
    snapshot = getattr(runtime, "memory_snapshot", False) and device.type == "cuda"
    if snapshot:
        torch.cuda.memory._record_memory_history()
    output = getattr(runtime, "output_dir", None) or getattr(config, "output", None) or Path("memory")
    folder = output if output.suffix == "" else output.with_suffix(".memory")
    if folder != getattr(runtime, "output_dir", None):
        check_writable(folder, getattr(runtime, "overwrite", False))
    with contextlib.ExitStack() as stack:
        for owner, attribute, name in places:
            stack.enter_context(stages.around(owner, attribute, name))
        try:
            with stages.stage("between"):
                return run(config)
        except InputError:
            # Nothing was computed, and the folder may be another's.
            stages.most.clear()
            raise
        finally:
            if stages.most:
                _write_memory(folder, stages)
            if stages.most and snapshot:
                torch.cuda.memory._dump_snapshot(str(folder / "memory.pickle"))


def _write_memory(folder: Path, stages: MemoryStages) -> None:
    limit = memory_limit(stages.device, 1.0)
    highest = max(stage["peak_bytes"] for stage in stages.most.values())
    report = {
        "stages": stages.most,
        "limit_bytes": limit,
        "utilisation": highest / limit,
        "child_bytes": largest_child(),
    }
    figure = Figure(figsize=(7, 3))
    axes = figure.subplots()
    axes.barh(list(stages.most), [stage["peak_bytes"] / 1e9 for stage in stages.most.values()])
    axes.set(xlabel="most memory, GB")
    with whole_file(folder / "memory.png") as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight")
    write_text(folder / "memory.json", json.dumps(report, indent=1) + "\n")
    log.info("memory: %.2f of %.2f GB, %s", highest / 1e9, limit / 1e9, folder / "memory.json")
