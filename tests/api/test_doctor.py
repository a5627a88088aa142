"""The findings of the doctor about a machine, from a report of what was measured on it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from aam.api.doctor import Finding, collect_findings, judge_attention
from aam.cli import main
from aam.device import distributed
from aam.device.platform import platform_of, read_facts
from examples.runs import run_ranks

PLATFORMS = Path(__file__).parents[1] / "golden" / "platforms"


def machine(name: str) -> dict[str, Any]:
    return {"mended": [], **json.loads((PLATFORMS / f"{name}.json").read_text())}


def report(**changes: Any) -> dict[str, Any]:
    healthy = {"attention": {"results": {}, "chosen": {}}, "training": {}}
    healthy["probe"] = {}
    return {**healthy, "unseen": False, "first_tensor": "", **changes}


def findings(facts: dict[str, Any], **measured: Any) -> list[Finding]:
    return [*collect_findings(platform_of(facts), facts, report(**measured))]


@pytest.fixture
def apu() -> dict[str, Any]:
    return {**machine("gfx942-torch2.7-rocm6.3"), "environment": {}}


def test_a_healthy_machine_has_no_findings(apu):
    assert findings(apu) == findings(apu, training={"difference": 1e-4}) == []
    here = {**read_facts(torch.device("cpu")), "environment": {}, "mended": []}
    assert findings(here) == []


BOTH_LISTS = {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}
FLASH = {"forward": 2.0, "backward": 1.0, "seconds": 1.0}
ATTENTION = {
    "results": {"float32, masked": {"flash": FLASH}},
    "chosen": {"float32, masked": "math"},
}
CAPTURE = {
    "capture": {"ok": False, "reason": "its process ended with SIGSEGV", "seconds": 2.0},
    "workers": {"ok": True, "reason": "4"},
}
COMPILER = {"compile-inductor": {"ok": False, "reason": "no compiler", "seconds": 2.0}}


@pytest.mark.parametrize(
    ("facts", "measured", "finding"),
    [
        ({"environment": BOTH_LISTS}, {}, "mended: .* to no device at all; .* of your scripts"),
        ({}, {"attention": ATTENTION}, "wrong: attention flash, float32, masked: .* by 2 .* math;"),
        ({}, {"unseen": True}, "wrong: .* torch sees none; check the driver"),
        ({}, {"first_tensor": "ended with 9"}, "wrong: .* GPU ended with 9; without --rocm"),
        ({}, {"training": {"difference": 0.2}}, "wrong: .* the CPU's by 0.2 of the loss; .*report"),
        ({}, {"probe": CAPTURE}, "note: capture does not work here: .* SIGSEGV; .* one operation"),
        ({}, {"probe": COMPILER}, "note: compile-inductor .*: no compiler; .* another compiler"),
    ],
)
def test_each_fault_of_a_machine_is_one_finding(apu, facts, measured, finding):
    (found,) = findings({**apu, **facts}, **measured)
    assert re.match(finding, f"{found.level}: {found.what}; {found.mend}"), found


# --- recorded and simulated machines -----------------------------------------------------------

FINDINGS = {
    "gfx942-torch2.5-rocm6.2": [
        "mended CUDA_VISIBLE_DEVICES: composes with ROCR_VISIBLE_DEVICES",
        "wrong attention mem_efficient, float32, masked: is off by 1.73 against float64",
        "mended PYTORCH_HIP_ALLOC_CONF: expandable_segments hangs on ROCm below 7",
        "mended HSA_OVERRIDE_GFX_VERSION",
        "note compile-inductor does not work here",
    ],
    "gfx942-torch2.7-rocm6.3": ["mended CUDA_VISIBLE_DEVICES: composes with ROCR_VISIBLE_DEVICES"],
    "gfx1100-torch2.7-rocm6.3": [],
    "gfx1010-torch2.7-rocm6.3": [],
    "sm_90-torch2.11-cuda13.0": [],
}


@pytest.mark.parametrize("name", FINDINGS)
def test_findings_about_recorded_machines(name):
    facts = machine(name)
    attention = judge_attention(facts["gates"], timed=True)
    found = findings(facts, attention=attention, probe=facts.get("probe", {}))
    lines = [f"{finding.level} {finding.what}" for finding in found]
    for expected in FINDINGS[name]:
        assert any(line.startswith(expected) for line in lines), (expected, lines)
    assert any("wrong" in line for line in lines) == any("wrong" in line for line in FINDINGS[name])


def test_a_machine_on_which_no_attention_is_right_is_judged_all_the_same():
    gates = machine("gfx942-torch2.5-rocm6.2")["gates"]
    gates["float32, masked"]["math"] |= {"backward": 2.0}
    judged = judge_attention(gates, timed=True)
    assert judged["chosen"].keys() == gates.keys() - {"float32, masked"}
    found = findings(machine("gfx942-torch2.5-rocm6.2"), attention=judged)
    math = Finding(
        "wrong",
        "attention math, float32, masked: is off by 2 against float64",
        "aam takes none; upgrade PyTorch",
    )
    assert math in found


# --- what joins the ranks, on a simulated node and between two processes -----------------------


@pytest.mark.slow
def test_two_ranks_measure_an_all_reduce(tmp_path):
    words = f"doctor --ranks --device cpu --threads 1 --output {tmp_path}/ranks.json".split()
    printed = "".join(run_ranks(2, words, "aam"))
    report = json.loads((tmp_path / "ranks.json").read_text())
    assert (report["ranks"], report["nodes"], report["transport"]) == (2, 1, "TCP")
    assert 1e6 < report["all_reduce"] < 1e12
    assert "2 ranks on 1 nodes, gloo, between nodes TCP\nall-reduce of 67 MB: " in printed


def test_one_rank_has_nothing_to_measure(refused, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert "no rank is set in the environment" in refused(main, ["doctor", "--ranks"])


@pytest.mark.parametrize(
    ("log", "transport"),
    [
        ("n1:7:9 [0] NCCL INFO Using network AWS Libfabric\n", "AWS Libfabric"),
        (
            "n1:7:9 [0] NCCL INFO NET/Plugin: none\nn1:7:9 [0] NCCL INFO Using network Socket\n",
            "Socket",
        ),
        ("", "unknown: NCCL's log names no network"),
    ],
)
def test_the_transport_is_read_from_the_log(tmp_path, monkeypatch, log, transport):
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        # So that the test's end restores it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "log").write_text(log)
    distributed.record_transport(tmp_path / "log")
    assert distributed.transport_of("nccl") == transport
    assert distributed.transport_of("gloo") == "TCP"
