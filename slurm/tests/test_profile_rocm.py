"""The job that profiles a node: speed first, without a tracer, and kept whatever the tracer does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "slurm" / "profile_rocm.sh"
STUBS = """
set -uo pipefail
OUT=$PWD/out WORK=$PWD ROCM= ENTER=() PYTHON=PYTHON_HERE AAM=AAM_HERE
mkdir -p "$OUT"
log() { echo "log: $*"; }
fail() { echo "fail: $*"; exit "$1"; }
in_image() {
    echo "run: $*"
    case "$*" in
        *kernel-trace*) TRACER;;
        *) return 0;;
    esac
}
"""
WROTE = (
    "mkdir -p traces/node; printf 'Name,TotalDurationNs\\nattn_fwd,1e6\\nfill,1e6\\n'"
    " >traces/node/1_kernel_stats.csv"
)


@pytest.mark.parametrize(
    ("tracer", "traced", "words"),
    [
        ("return 1", False, "rocprofv3: see above"),
        ("return 0", False, "wrote no kernel_stats.csv"),
        (f"{WROTE}; return 1", True, "before ROCm 7.2.2 drops kernels of graphs"),
        (WROTE, True, "before ROCm 7.2.2 drops kernels of graphs"),
    ],
)
def test_a_tracer_that_fails_loses_no_speed(tmp_path, tracer, traced, words):
    body = SCRIPT.read_text()
    functions = body[body.index("aam() {") : body.index("\nmodule purge")]
    steps = body[body.index('aam doctor --output "$OUT') :]
    stubs = STUBS.replace("PYTHON_HERE", sys.executable).replace("AAM_HERE", str(ROOT))
    program = stubs.replace("TRACER", tracer) + functions + "\n" + steps
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    runs = [line for line in done.stdout.splitlines() if "profile --table" in line]
    assert f"--memory-profile --output-dir {tmp_path}/out/memory" in runs[0]
    assert f"--output-dir {tmp_path}/out/step" in runs[1]
    assert "kernel-trace" in runs[2]
    assert len(runs) == 3
    table = tmp_path / "out" / "kernels.txt"
    assert table.exists() == traced
    assert not traced or table.read_text().startswith("kernels: 0.002 s, attention 50.0%")
    assert done.stdout.splitlines()[-1] == f"log: results: {tmp_path}/out"
