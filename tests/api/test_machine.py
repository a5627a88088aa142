"""The findings of the doctor about a machine, from a report of what was measured on it; the profile
of a step, the kernels of rocprofv3, and the comparison with an earlier report.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from aam.api.machine import (
    TESTED,
    Finding,
    collect_findings,
    compare_reports,
    judge_attention,
    kernel_table,
    measure_steps,
    read_kernels,
)
from aam.cli import main
from aam.config import PretrainConfig
from aam.device import distributed, measure
from aam.device.environment import numa_nodes
from aam.device.platform import platform_of, read_facts
from aam.training.decisions import STAGES, make_steps
from examples.runs import run_ranks

PLATFORMS = Path(__file__).parents[1] / "golden" / "platforms"


def machine(name: str) -> dict[str, Any]:
    return {"mended": [], **json.loads((PLATFORMS / f"{name}.json").read_text())}


def report(**changes: Any) -> dict[str, Any]:
    healthy = {"attention": {"results": {}, "chosen": {}}, "compile": {}, "training": {}}
    return {**healthy, "numa": [], "unseen": False, "first_tensor": "", **changes}


def findings(facts: dict[str, Any], **measured: Any) -> list[Finding]:
    return [*collect_findings(platform_of(facts), facts, report(**measured))]


@pytest.fixture
def apu() -> dict[str, Any]:
    return {**machine("gfx942-torch2.7-rocm6.3"), "environment": {}}


def test_a_healthy_machine_has_no_findings(apu):
    assert findings(apu) == findings(apu, training={"difference": 1e-4}) == []
    here = {**read_facts(torch.device("cpu")), "environment": {}, "mended": []}
    assert findings(here) == []


NEWER = {"torch": "2.15.0+rocm7.0", "hip": "7.0"}
FLASH = {"wrong": True, "forward": 2.0, "backward": 1.0, "seconds": 1.0}
ATTENTION = {
    "results": {"float32, masked": {"flash": FLASH}},
    "chosen": {"float32, masked": "math"},
}
COMPILED = {"backend": "eager", "tried": {"inductor": "no compiler"}}


@pytest.mark.parametrize(
    ("facts", "measured", "level", "what", "mend"),
    [
        (
            {"environment": {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}},
            {},
            "mended",
            "to no device at all",
            "leave it out of your scripts",
        ),
        (
            {"torch": NEWER},
            {},
            "note",
            "PyTorch 2.15.0+rocm7.0 is newer than the tested releases, 2.7.1 to 2.13",
            "pip install torch==2.13.0",
        ),
        (
            {},
            {"attention": ATTENTION},
            "wrong",
            "attention flash, float32, masked: off by 2 ",
            "math",
        ),
        ({}, {"compile": COMPILED}, "note", "torch.compile with inductor: no compiler", "eager"),
        ({}, {"unseen": True}, "wrong", "torch sees none", "check the driver"),
        ({}, {"first_tensor": "ended with 9"}, "wrong", "GPU ended with 9", "without --rocm"),
        ({}, {"training": {"difference": 0.2}}, "wrong", "the CPU's by 0.2 of the loss", "report"),
        (
            {},
            {"numa": [0, 2, 1]},
            "note",
            "device 1 lies at NUMA node 2, device 2 lies",
            "cpu_sets",
        ),
    ],
)
def test_each_fault_of_a_machine_is_one_finding(apu, facts, measured, level, what, mend):
    (finding,) = findings({**apu, **facts}, **measured)
    assert finding.level == level
    assert what in finding.what
    assert mend in finding.mend


def test_the_newest_tested_torch_is_that_of_the_lock():
    lock = (Path(__file__).parents[2] / "containers" / "lock" / "cpu.txt").read_text()
    assert f"\ntorch=={TESTED[1]}." in lock


# --- recorded and simulated machines -----------------------------------------------------------

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


@pytest.mark.parametrize("name", FINDINGS)
def test_findings_about_recorded_machines(name):
    facts = machine(name)
    attention = judge_attention(facts["gates"], timed=True)
    found = findings(facts, attention=attention, compile=facts.get("compile", {}))
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


def test_numa_nodes_are_in_the_order_of_pci_addresses(apu, tmp_path):
    addresses = ("0000:02:00.0", "0000:01:00.0", "0001:01:00.0", "0002:01:00.0")
    for number, (address, node) in enumerate(zip(addresses, (1, 0, 3, 2), strict=True)):
        device, card = tmp_path / "pci" / address, tmp_path / "drm" / f"renderD{128 + number}"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        card.mkdir(parents=True)
        (card / "device").symlink_to(device)
    assert numa_nodes(tmp_path / "drm") == [0, 1, 3, 2]
    assert numa_nodes(tmp_path / "absent") == []
    # Four APUs, APUs divided into three devices each, and a system that does not say.
    for nodes in ([0, 1, 2, 3], [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], [0, -1], [-1]):
        assert findings(apu, numa=nodes) == []


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


# --- the profile of a step ----------------------------------------------------------------------

ROCPROF = Path(__file__).parents[1] / "golden" / "rocprof"


@pytest.fixture(scope="module")
def study(simulate_study):
    return simulate_study(samples=36, asvs=60, depth=4000)


@pytest.fixture(autouse=True)
def small_product(monkeypatch):
    monkeypatch.setitem(measure.PRODUCT_SIZE, "cpu", 256)


def test_stages_add_up_to_the_step_and_leave_the_network(study, small_pretraining):
    config: PretrainConfig = small_pretraining(study, {}, batch_size=6)
    steps = make_steps(config)
    measured = steps.stages(2, 0)
    assert not vars(steps.model).keys() & {"encode_asvs", "encode_samples"}
    assert set(measured["stages"]) == set(STAGES)
    assert all(measured["stages"][name] > 0 for name in STAGES)
    assert 0.5 < measured["accounted"] <= 1


def test_the_numbers_of_a_step_belong_together(study, small_pretraining):
    measured = measure_steps(small_pretraining(study, {}, batch_size=6), repeats=2)
    assert measured["flops_per_s"] / measured["share"] == pytest.approx(
        measured["product_flops_per_s"]
    )
    assert len(measured["losses"]) == 4, "two warm-up steps and two that are timed"
    assert measured["peak_bytes"] > 1e8
    assert 50 < measured["operations_per_step"] < 5000
    assert 1 <= measured["distinct_shapes"] <= 2
    assert measured["graphs"] == 0


@pytest.mark.parametrize("what", ["step", "batch-size", "memory"])
def test_a_profile_is_printed_written_and_compared(study, tmp_path, what, capsys):
    sizes = "--embedding-dim 8 --attention-layers 1 --attention-heads 2 --threads 1"
    words = f"profile {what} --table {study}/table.biom --tree {study}/tree.nwk {sizes}".split()
    words += ["--steps", "2", "--batch-size", "8", "--device", "cpu"]
    out = tmp_path / "out"
    assert main([*words, "--rocprof", str(ROCPROF), "--output-dir", str(out)]) == 0
    if what == "memory":
        assert "backward" in json.loads((out / "memory.json").read_text())["stages"]
        return
    report, printed = json.loads((out / "profile.json").read_text()), capsys.readouterr().out
    if what == "step":
        assert report["samples_per_s"] > 0
        assert report["kernels"]["attn_fwd"] == pytest.approx(0.0482112)
        assert "of the wall time" in printed
        assert "attention  attn_fwd" in printed
    else:
        assert report["batch_size"] == max(map(int, report["peak_bytes_of"])) > 8
        assert max(report["peak_bytes_of"].values()) < report["limit_bytes"]
    baseline = tmp_path / "before.json"
    shutil.copy(out / "profile.json", baseline)
    assert main([*words, "--output-dir", str(out)]) == 2, "exists already"
    again = [*words, "--output-dir", str(out), "--overwrite", "--baseline", str(baseline)]
    assert main(again) == 0
    assert " times)" in capsys.readouterr().out or what == "batch-size"


# --- the kernels of rocprofv3 -------------------------------------------------------------------


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
def test_a_file_without_kernels_is_refused(tmp_path, refused, content):
    path = tmp_path / "kernel_stats.csv"
    path.write_text(content)
    words = f"profile step --table {path} --rocprof {path} --output-dir {tmp_path}/out"
    assert f"{path}: no kernels can be read" in refused(main, words.split())


# --- a baseline ---------------------------------------------------------------------------------


def test_a_comparison_names_what_differs_and_by_how_much():
    before = {"speed": 100.0, "torch": "2.7", "same": 1, "noise": 10.0, "date": "a", "list": [1]}
    now = {"speed": 250.0, "torch": "2.8", "same": 1, "noise": 10.1, "date": "b", "list": [2]}
    assert compare_reports({**now, "new": {"a": 2}}, before) == [
        "speed: 100 -> 250 (2.50 times)",
        "torch: 2.7 -> 2.8",
        "new.a: None -> 2",
    ]
    assert compare_reports(before, before) == ["no difference from the baseline"]


def test_a_baseline_that_is_no_report_is_refused(tmp_path, refused):
    path = tmp_path / "before.json"
    path.write_text("[]")
    words = f"profile step --table {path} --baseline {path} --output-dir {tmp_path}/out"
    assert "is not a report of this command" in refused(main, words.split())
