"""The findings of the doctor about a machine, from a report of what was measured on it; what joins
the ranks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from aam.api.doctor import STEPS, TESTED, collect_findings, judge_attention, short_training
from aam.cli.main import main
from aam.device import distributed
from aam.device.environment import numa_nodes
from aam.device.platform import Platform, platform_of, read_facts
from examples.runs import run_ranks


@pytest.fixture
def facts() -> dict[str, Any]:
    facts = read_facts(torch.device("cpu"))
    return {**facts, "environment": {}, "mended": []}


@pytest.fixture
def platform(facts) -> Platform:
    return platform_of(facts)


def report(**changes: Any) -> dict[str, Any]:
    healthy = {"attention": {"results": {}, "chosen": {}}, "compile": {}, "training": {}}
    healthy |= {"numa": []}
    return {**healthy, "unseen": False, "first_tensor": "", **changes}


def test_a_healthy_machine_has_no_findings(platform, facts):
    assert collect_findings(platform, facts, report()) == []


def test_attention_compilers_and_devices_that_fail_are_findings(platform, facts):
    results = {
        "float32, masked": {
            "flash": {"wrong": True, "forward": 2.0, "backward": 1.0, "seconds": 1.0}
        }
    }
    attention = {"results": results, "chosen": {"float32, masked": "math"}}
    compiled = {"backend": "eager", "tried": {"inductor": "no compiler"}}
    findings = collect_findings(
        platform, facts, report(attention=attention, compile=compiled, unseen=True)
    )
    assert [finding.level for finding in findings] == ["wrong", "note", "wrong"]
    assert findings[0].what == "attention flash, float32, masked: off by 2 against float64"
    assert "aam takes math" in findings[0].mend
    assert "torch.compile with inductor: no compiler" in findings[1].what
    assert "torch sees none" in findings[2].what


def test_a_change_of_the_environment_is_a_finding(platform, facts):
    facts["environment"] = {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}
    (finding,) = collect_findings(platform, facts, report())
    assert finding.level == "mended"
    assert "to no device at all" in finding.what
    assert "leave it out of your scripts" in finding.mend


def test_a_torch_newer_than_the_tests_saw_is_worth_a_note(platform, facts):
    newer = {**facts, "torch": {**facts["torch"], "torch": "2.15.0+cu130"}}
    (finding,) = collect_findings(platform, newer, report())
    assert finding.level == "note"
    assert "PyTorch 2.15.0+cu130 is newer than the tested releases, 2.7.1 to 2.13" in finding.what
    older = {**facts, "torch": {**facts["torch"], "torch": "2.7.1+rocm6.3"}}
    assert collect_findings(platform, older, report()) == []


def test_the_newest_tested_torch_is_that_of_the_lock():
    lock = (Path(__file__).parents[2] / "containers" / "lock" / "cpu.txt").read_text()
    assert f"\ntorch=={TESTED[1]}." in lock


# --- recorded and simulated machines -----------------------------------------------------------

PLATFORMS = Path(__file__).parents[1] / "golden" / "platforms"
FINDINGS = {
    "gfx942-torch2.5-rocm6.2": [
        "mended CUDA_VISIBLE_DEVICES: composes with ROCR_VISIBLE_DEVICES",
        "wrong attention mem_efficient, float32, masked: off by 1.73 against float64",
        "mended PYTORCH_HIP_ALLOC_CONF: expandable_segments hangs on ROCm below 7",
        "mended HSA_OVERRIDE_GFX_VERSION",
        "note torch.compile with inductor",
    ],
    "gfx942-torch2.7-rocm6.3": ["mended CUDA_VISIBLE_DEVICES: composes with ROCR_VISIBLE_DEVICES"],
    "gfx1100-torch2.7-rocm6.3": [],
    "gfx1010-torch2.7-rocm6.3": [],
    "sm_90-torch2.11-cuda13.0": [],
}


def machine(name: str) -> dict[str, Any]:
    return {"mended": [], **json.loads((PLATFORMS / f"{name}.json").read_text())}


@pytest.mark.parametrize("name", FINDINGS)
def test_findings_about_recorded_machines(name):
    facts = machine(name)
    attention = judge_attention(facts["gates"], timed=True)
    measured = report(attention=attention, compile=facts.get("compile", {}))
    found = collect_findings(platform_of(facts), facts, measured)
    lines = [f"{finding.level} {finding.what}" for finding in found]
    for expected in FINDINGS[name]:
        assert any(line.startswith(expected) for line in lines), (expected, lines)
    assert any("wrong" in line for line in lines) == any("wrong" in line for line in FINDINGS[name])


def test_a_machine_on_which_no_attention_is_right_is_judged_all_the_same(caplog):
    gates = machine("gfx942-torch2.5-rocm6.2")["gates"]
    gates["float32, masked"]["math"] |= {"backward": 2.0}
    judged = judge_attention(gates, timed=True)
    assert judged["chosen"] == {}
    assert judged["results"]["float32, masked"]["math"]["wrong"]
    assert "no back end is correct here" in caplog.text


@pytest.fixture
def apu() -> dict[str, Any]:
    return {**machine("gfx942-torch2.7-rocm6.3"), "environment": {}}


def test_a_first_tensor_that_crashes_is_wrong(apu):
    (finding,) = collect_findings(platform_of(apu), apu, report(first_tensor="ended with SIGSEGV"))
    assert finding.level == "wrong"
    assert finding.what == "the first tensor on the GPU ended with SIGSEGV"
    assert "without --rocm" in finding.mend


def test_devices_beside_other_cpu_sets_are_noted(apu, tmp_path):
    """Four APUs, of which the kernel lists two the other way round; PCI addresses give the order."""
    addresses = ("0000:02:00.0", "0000:01:00.0", "0001:01:00.0", "0002:01:00.0")
    for number, (address, node) in enumerate(zip(addresses, (1, 0, 3, 2), strict=True)):
        (tmp_path / "pci" / address).mkdir(parents=True)
        (tmp_path / "pci" / address / "numa_node").write_text(f"{node}\n")
        (tmp_path / "drm" / f"renderD{128 + number}").mkdir(parents=True)
        link = tmp_path / "drm" / f"renderD{128 + number}" / "device"
        link.symlink_to(tmp_path / "pci" / address)
    nodes = numa_nodes(tmp_path / "drm")
    assert nodes == [0, 1, 3, 2]
    (finding,) = collect_findings(platform_of(apu), apu, report(numa=nodes))
    assert finding.what == "device 2 lies at NUMA node 3, device 3 lies at NUMA node 2"
    assert collect_findings(platform_of(apu), apu, report(numa=[0, 1, 2, 3])) == []
    assert collect_findings(platform_of(apu), apu, report(numa=[-1])) == []
    assert numa_nodes(tmp_path / "absent") == []


# --- a short training ---------------------------------------------------------------------------


def test_a_short_training_has_losses_and_a_wrong_one_is_a_finding(platform, facts):
    training = short_training("cpu", 1)
    assert len(training["losses"]) == STEPS
    assert training["losses"][-1] < training["losses"][0]
    assert training["samples_per_s"] > 0
    assert collect_findings(platform, facts, report(training={"difference": 1e-4})) == []
    (finding,) = collect_findings(platform, facts, report(training={"difference": 0.2}))
    assert finding.level == "wrong"
    assert "differ from the CPU's by 0.2 of the loss" in finding.what


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
