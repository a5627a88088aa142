"""What decides whether a kernel is right, and the session that compiles kernels."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

spec = importlib.util.spec_from_file_location("kernels_build", HERE / "build.py")
BUILD = importlib.util.module_from_spec(spec)
spec.loader.exec_module(BUILD)

ROW = {
    "place": 0,
    "kernel": "triton_poi_0",
    "variant": {},
    "vgpr": 512,
    "vgpr_spills": 0,
    "sgpr_spills": 4,
}
ROW |= {"scratch": 0, "lds": 65536, "digest": "0"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"sgpr_spills": 30}, ""),
        ({"vgpr_spills": 1}, "1 vector registers spilled"),
        ({"scratch": 16}, "16 bytes of scratch memory"),
        ({"vgpr": 513}, "513 vector registers of 512"),
        ({"lds": 65537}, "65537 bytes of local memory of 65536"),
        ({"error": "CompilationError: at 3:4"}, "CompilationError: at 3:4"),
    ],
)
def test_what_is_wrong_with_a_binary(changes, problem):
    assert BUILD.problem_of({**ROW, **changes}) == problem


def test_numbers_of_an_assembly():
    lines = [".vgpr_count:     293", ".vgpr_spill_count: 2", ".sgpr_spill_count: 0"]
    text = "\n".join([*lines, ".private_segment_fixed_size: 8"])
    expected = {"vgpr": 293, "vgpr_spills": 2, "sgpr_spills": 0, "scratch": 8}
    assert BUILD.numbers_of(text) == expected
    with pytest.raises(ValueError, match=r"has no \.vgpr_spill_count"):
        BUILD.numbers_of(lines[0])


def test_a_summary_counts_what_failed():
    failed = {"place": 1, "kernel": "triton_red_1", "variant": {}, "error": "KeyError: 'x'"}
    summary = BUILD.summary_of([ROW, {**ROW, "digest": "1", "vgpr": 8}, failed], 1.23)
    assert (summary["kernels"], summary["binaries"], summary["failed"]) == (2, 3, 1)
    assert (summary["most_vgpr"], summary["with_sgpr_spills"], summary["seconds"]) == (512, 2, 1.2)


def test_without_a_linker_one_line_says_what_to_install(tmp_path):
    command = [sys.executable, HERE / "build.py", HERE / "int1.py"]
    missing = {"TRITON_HIP_LLD_PATH": str(tmp_path / "ld.lld")}
    done = subprocess.run(command, env=missing, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"no linker {tmp_path}/ld.lld: apt-get install lld-19" in done.stderr


# --- the kernels that are kept ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept() -> str:
    return (HERE / "pretraining.py").read_text()


def test_the_kept_kernels_name_their_origin_and_are_small(kept):
    assert "inductor of torch 2.7.1 for Triton 3.3.1" in ast.get_docstring(ast.parse(kept))
    assert len(kept) < 1e6


def test_the_helpers_have_what_the_kept_kernels_call(kept):
    called = set(re.findall(r"triton_helpers\.(\w+)", kept))
    tree = ast.parse((HERE / "triton_helpers.py").read_text())
    assert called <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_math_attention_has_boolean_reductions(kept):
    """The page says so, and Triton 3.1 fails on them."""
    assert "triton_helpers.any(" in kept


def test_the_pages_show_what_is_kept(kept):
    record = json.loads((ROOT / "docs" / "results.json").read_text())["kernels"]["values"]
    (row,) = (
        row
        for row in record["rows"]
        if (row["task"], row["network"], row["arch"]) == ("pretraining", "96-float32", "gfx942")
    )
    assert row["kernels"] == kept.count("@triton.jit")
    assert not any(
        row[name]
        for row in record["rows"]
        for name in ("failed", "with_vgpr_spills", "with_scratch")
    )


def test_the_session_takes_the_versions_of_the_image():
    lock = (ROOT / "containers" / "lock" / "rocm.txt").read_text()
    session = (ROOT / "noxfile.py").read_text()
    (torch,) = re.findall(r"(?m)^torch==([\d.]+)\+rocm", lock)
    (triton,) = re.findall(r"(?m)^pytorch-triton-rocm==([\d.]+)", lock)
    assert f'KERNEL_TORCH, TRITON = "torch=={torch}", "triton=={triton}"' in session
