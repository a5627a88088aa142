"""The kernels of rocprofv3."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kernels import kernel_table, read_kernels

ROOT = Path(__file__).parents[2]
ROCPROF, KERNELS = ROOT / "tests" / "golden" / "rocprof", ROOT / "benchmarks" / "kernels.py"


def test_the_ten_kernels_that_cost_most_are_listed_attention_apart():
    kernels = read_kernels(ROCPROF / "kernel_stats.csv")
    assert [*kernels][:3] == [
        "Cijk_Alik_Bljk_SB_MT64x64x16_MI16x16x1_SN_LDSB1",
        "attn_fwd",
        "bwd_kernel_dk_dv",
    ]
    lines = kernel_table(kernels)
    assert lines[0] == "kernels: 0.253 s, attention 34.8%"
    assert [line.split()[:2] for line in lines[1:3]] == [
        ["attention", "attn_fwd"],
        ["attention", "bwd_kernel_dk_dv"],
    ]
    assert len(lines) == 1 + 2 + 10
    assert all(len(line) < 100 for line in lines)
    assert "fill_kernel" not in lines[-1]


def test_a_folder_is_read_too(tmp_path):
    folder = tmp_path / "node-1"
    folder.mkdir()
    shutil.copy(ROCPROF / "kernel_stats.csv", folder / "17_kernel_stats.csv")
    assert len(read_kernels(tmp_path)) == 13


@pytest.mark.parametrize("content", ["Name\nx\n", "", "Name,TotalDurationNs\nx,y\n"])
def test_a_file_without_kernels_is_refused(tmp_path, content):
    path = tmp_path / "kernel_stats.csv"
    path.write_text(content)
    done = subprocess.run([sys.executable, KERNELS, path], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{path}: no kernels can be read" in done.stderr
