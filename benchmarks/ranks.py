"""Speed of `aam pretrain` on two and four processes of one thread compared with one process."""

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

# Ranks whose batches together are that of one process; four share the cores of a machine that has
# two.
RANKS = (2, 4)


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
            variables, quiet = {**environment, **rank_variables}, subprocess.DEVNULL
            process = subprocess.Popen(command, env=variables, stdout=quiet, stderr=errors)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append((process, errors))
        for process, errors in started:
            if process.wait():
                errors.seek(0)
                message = errors.read()[-2000:].strip()
                if process.returncode == 2:
                    raise InputError(message)
                ended = f"ended with exit status {process.returncode}: {message}"
                raise RunError(f"{shlex.join(commands[0])} {ended}")


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"p50": median(values), "low": min(values), "high": max(values)}


def time_ranks(
    table: Path, tree: Path, repeats: int
) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Return the speed of pretraining on a CPU in each of the ``ways``, which take turns, `repeats`
    times.

    Of each way ``samples_per_s`` and ``ratio``, to one process in the same turn: ``p50``, ``low``
    and ``high``. ``one`` process of one thread; for each number of `RANKS` so many ``ranks`` at the
    same batch, and so many ``apart``, which know nothing of each other, together: the most that the
    cores of this machine can do.
    """
    words = [sys.executable, "-m", "aam", "pretrain", "--table", str(table), "--tree", str(tree)]
    words += f"--missing-tips drop --device cpu --threads 1 --epochs {EPOCHS} --overwrite".split()
    speeds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(number) for number in range(max(RANKS))]
        commands = [[*words, "--output-dir", str(output)] for output in outputs]
        for _ in range(repeats):
            _run(commands[:1], ranks=False)
            speeds.setdefault("one", []).append(_last_speed(outputs[0]))
            for size in RANKS:
                _run(commands[:size], ranks=False)
                speeds.setdefault(f"{size} apart", []).append(sum(map(_last_speed, outputs[:size])))
                batch = str(TrainConfig().samples_per_batch // size)
                _run([[*commands[0], "--distributed", "--batch-size", batch]] * size, ranks=True)
                speeds.setdefault(f"{size} ranks", []).append(_last_speed(outputs[0]))
    ratios = {
        way: [a / b for a, b in zip(values, speeds["one"], strict=True)]
        for way, values in speeds.items()
    }
    return {
        "ways": {
            way: {"samples_per_s": _spread(speeds[way]), "ratio": _spread(ratios[way])}
            for way in speeds
        }
    }
