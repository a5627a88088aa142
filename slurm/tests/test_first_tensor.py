"""The check of the GPUs of a node, which a job makes before it starts."""

from __future__ import annotations

import pytest

from slurm import first_tensor as module

CPUS = {node: {*range(24 * node, 24 * (node + 1))} for node in range(4)}
CPUS = {node: cpus | {cpu + 96 for cpu in cpus} for node, cpus in CPUS.items()}
MASKS = [(2**24 - 1) << shift | (2**24 - 1) << 96 + shift for shift in (0, 24, 48, 72)]


@pytest.mark.parametrize(
    ("nodes", "masks", "line"),
    [
        ([0, 1, 2, 3], MASKS, "device i is next to CPU mask i (NUMA nodes 0, 1, 2, 3)"),
        ([0, 0, 1, 1], [1, 2, 1 << 24, 2 << 24], "device i is next to CPU mask i"),
        ([0, 1, 3, 2], MASKS, "warning: devices not next to the CPU mask of their number: 2 (NUMA"),
        ([0, 1, 2, 3], MASKS[:3], "the system does not say"),
        ([0, 1, 2, -1], MASKS, "the system does not say"),
        ([], MASKS, "the system does not say"),
        ([0], [2**48 - 1], "warning: devices not next to the CPU mask of their number: 0 (NUMA"),
    ],
)
def test_a_line_says_whether_devices_are_next_to_their_masks(nodes, masks, line):
    assert module.masks_line(masks, nodes, CPUS).startswith(line)


@pytest.mark.parametrize(("hip", "hint"), [("6.3", "without --rocm"), (None, "nvidia-smi")])
def test_all_devices_of_a_node_are_checked(monkeypatch, capsys, hip, hint):
    monkeypatch.setattr("torch.version.hip", hip)
    monkeypatch.setattr("torch.version.cuda", None if hip else "12.6")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    failures = {"cuda:2": "ended with SIGSEGV"}
    monkeypatch.setattr(module, "first_tensor", lambda name: failures.get(name, ""))
    words = ["hip" if hip else "cuda", "4"]
    assert module.main(*words, "") == 1
    message = capsys.readouterr().err
    assert message.startswith(f"cuda:2: the first tensor ended with SIGSEGV; {hint}")
    assert message.count("\n") == 1
    monkeypatch.setattr(module, "first_tensor", lambda name: "")
    assert module.main(*words, "") == 0
    monkeypatch.setattr(module, "numa_nodes", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(module, "numa_cpus", lambda: {node: {node} for node in range(4)})
    assert module.main(*words, "0x1,0x2,0x8,0x4") == 0
    assert "2 (NUMA node 2), 3 (NUMA node 3)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "built", "count", "problem"),
    [
        ("hip", "hip", 4, ""),
        ("hip", "hip", 0, "torch sees no GPU on this node: are /dev/kfd and /dev/dri there"),
        ("cuda", "cuda", 0, "torch sees no GPU on this node: does the job ask for GPUs"),
        ("hip", None, 0, "torch is built for the CPU, the site has hip devices"),
        ("cuda", "hip", 4, "torch is built for hip, the site has cuda devices"),
        ("hip", "hip", 12, "torch sees 12 devices on this node, the site has 4"),
    ],
)
def test_the_devices_must_be_those_of_the_site(kind, built, count, problem):
    found = module.device_problem(kind, 4, built, count)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
