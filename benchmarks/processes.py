"""`aam unifrac` as a whole process, compared with ssu of unifrac-binaries where it is on PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

# Options of ours, and of ssu's, which computes in float32 as ours does.
SSU_METRICS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unifrac": (("unifrac",), ("unweighted_fp32",)),
    "weighted": (("weighted",), ("weighted_unnormalized_fp32",)),
    "weighted-normalized": (("weighted-normalized",), ("weighted_normalized_fp32",)),
    "generalized": (("generalized",), ("generalized_fp32",)),
}

# Runs the command in its arguments; prints wall seconds, exit status, processor seconds and memory
# as the system says.
STARTER = """
import json, os, sys, time
start = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
_, status, usage = os.wait4(os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet), 0)
wall = time.perf_counter() - start
print(json.dumps([wall, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
"""  # noqa: E501


def time_process(command: Sequence[str], threads: int) -> dict[str, float]:
    """Run a command and return its wall seconds, processor seconds and peak memory in bytes.

    Processor seconds can be compared on a machine that does other work too; wall seconds cannot.
    The command is started by a small process: the peak that Linux reports begins with the memory of
    the process that started it.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    starter = [sys.executable, "-S", "-E", "-c", STARTER, *command]
    quiet = subprocess.DEVNULL
    printed = subprocess.check_output(starter, env=environment, stderr=quiet, text=True)
    wall, status, processor, peak = json.loads(printed)
    if status:
        raise subprocess.CalledProcessError(status, command)
    return {
        "seconds": wall,
        "processor_seconds": processor,
        "peak_bytes": peak * (1 if sys.platform == "darwin" else 1024),
    }


def _matrix(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return a matrix of ssu's layout with its samples in the order of their ids."""
    with h5py.File(path, "r") as file:
        order = np.argsort(file["order"][()])
        return np.asarray(file["matrix"][()])[np.ix_(order, order)]


def time_unifrac_processes(
    table: Path, tree: Path, threads: int, repeats: int
) -> dict[str, dict[str, list[dict[str, float]] | float]]:
    """Return for each metric what processes take: ``aam`` and, if it is here, ``ssu``, with the
    largest ``difference``.

    The two run in turn, `repeats` times.
    """
    ssu = shutil.which("ssu")
    results: dict[str, dict[str, list[dict[str, float]] | float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "ours.h5", Path(folder) / "theirs.h5"
        for metric, (of_aam, of_ssu) in SSU_METRICS.items():
            words = [sys.executable, "-m", "aam", "unifrac", "--table", str(table)]
            words += ["--tree", str(tree), "--output", str(ours), "--threads", str(threads)]
            words += ["--overwrite", "--missing-tips", "drop", "--root-length", "exclude"]
            words += ["--device", "cpu", "--unifrac-metric", *of_aam]
            other = ["-i", str(table), "-t", str(tree), "-o", str(theirs), "-m", *of_ssu]
            other += ["-a", "0.5", "--pcoa", "0", "-r", "hdf5_fp32"]
            timed: list[dict[str, float]] = []
            compared: list[dict[str, float]] = []
            for _ in range(repeats):
                timed.append(time_process(words, threads))
                if ssu is not None:
                    compared.append(time_process([ssu, *other], threads))
            results[metric] = {"aam": timed}
            if ssu is not None:
                difference = float(np.abs(_matrix(ours) - _matrix(theirs)).max())
                results[metric] |= {"ssu": compared, "difference": difference}
    return results
