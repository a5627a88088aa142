"""`aam pretrain` on two processes of one core each beside one process: how much faster, and how fast it could be."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from aam.config import TrainConfig
from aam.device.distributed import rank_environment
from aam.errors import InputError, RunError

# The last epoch is timed; by then everything that is done only once is over.
EPOCHS = 2

# Options of each of two processes whose batches together are those of one.
TWO: dict[str, tuple[str, ...]] = {
    "data parallel": ("--distributed", "--batch-size", str(TrainConfig().batch_size // 2))
}


def _last_speed(output: Path) -> float:
    """Return the samples/s of the last epoch of a run."""
    records = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return float([record["samples_per_s"] for record in records if "samples_per_s" in record][-1])


def _run(commands: Sequence[Sequence[str]], ranks: bool) -> None:
    """Run commands at once, as ranks of one run or apart; none goes on when another has failed."""
    environment = rank_environment(len(commands)) if ranks else dict(os.environ)
    with contextlib.ExitStack() as stack:
        started = []
        for rank, command in enumerate(commands):
            rank_variables = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks else {}
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                command, env={**environment, **rank_variables}, stdout=subprocess.DEVNULL, stderr=errors
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append((process, errors))
        for process, errors in started:
            if process.wait():
                errors.seek(0)
                message = errors.read()[-2000:].strip()
                if process.returncode == 2:
                    raise InputError(message)
                raise RunError(f"{shlex.join(commands[0])} ended with exit status {process.returncode}: {message}")


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"p50": median(values), "low": min(values), "high": max(values)}


def time_two_processes(table: Path, tree: Path, repeats: int) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Return the speed of pretraining on a CPU in each of the ``ways``, which take turns, `repeats` times.

    Of each way ``samples_per_s`` and ``ratio``, to one process in the same turn: ``p50``, ``low`` and ``high``.
    ``one`` process of one thread; two of them with ``data parallel`` at the same batch; and ``apart``, two that know
    nothing of each other, together: the most that two cores of this machine can do.
    """
    words = [sys.executable, "-m", "aam", "pretrain", "--table", str(table), "--tree", str(tree)]
    words += ["--missing-tips", "drop", "--device", "cpu", "--threads", "1", "--epochs", str(EPOCHS), "--overwrite"]
    words += ["--from-scratch"]
    speeds: dict[str, list[float]] = {"one": [], "apart": [], **{way: [] for way in TWO}}
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "0", Path(folder) / "1"
        command, other = ([*words, "--output-dir", str(output)] for output in (first, second))
        for _ in range(repeats):
            _run([command], ranks=False)
            speeds["one"].append(_last_speed(first))
            _run([command, other], ranks=False)
            speeds["apart"].append(_last_speed(first) + _last_speed(second))
            for way, options in TWO.items():
                _run([[*command, *options]] * 2, ranks=True)
                speeds[way].append(_last_speed(first))
    ratios = {way: [a / b for a, b in zip(values, speeds["one"], strict=True)] for way, values in speeds.items()}
    return {"ways": {way: {"samples_per_s": _spread(speeds[way]), "ratio": _spread(ratios[way])} for way in speeds}}
