"""Platforms by their facts, recorded machines and what is decided on them; device, threads, the
cache of verdicts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from aam.device.attention import choose_backends
from aam.device.environment import required_changes
from aam.device.platform import choose_device, platform_of, prepare_device, read_facts
from aam.errors import InputError
from aam.options import RuntimeConfig
from tests.refusals import refusal

PLATFORMS = Path(__file__).parents[1] / "golden" / "platforms"
# Vendor, architecture, unified, bf16, share of memory; attention in float32 and bf16, masked and
# not; changes of the environment.
MEM, MATH = "mem_efficient", "math"
DECISIONS = {
    "gfx942-torch2.5-rocm6.2": (
        ("AMD", "gfx942", True, True, 0.8),
        (MATH, MEM, MATH, "flash"),
        {"CUDA_VISIBLE_DEVICES": None, "HSA_OVERRIDE_GFX_VERSION": None}
        | {"PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:512"},
    ),
    "gfx942-torch2.7-rocm6.3": (
        ("AMD", "gfx942", True, True, 0.8),
        (MEM, MEM, MEM, "flash"),
        {"CUDA_VISIBLE_DEVICES": None},
    ),
    "gfx1100-torch2.7-rocm6.3": (("AMD", "gfx1100", False, True, None), (MATH,) * 4, {}),
    "gfx1010-torch2.7-rocm6.3": (
        ("AMD", "gfx1010", False, False, None),
        (MATH,) * 4,
        {"TORCH_BLAS_PREFER_HIPBLASLT": "0"},
    ),
    "sm_90-torch2.11-cuda13.0": (("NVIDIA", "sm_90", False, True, None), (MEM,) * 4, {}),
}


def recorded(name: str) -> dict:
    return json.loads((PLATFORMS / f"{name}.json").read_text())


def test_every_recorded_machine_is_in_the_table_and_explained():
    names = {path.stem for path in PLATFORMS.glob("*.json")}
    assert names == DECISIONS.keys()
    explained = (PLATFORMS / "README.md").read_text()
    assert all(f"`{name}.json`" in explained for name in names)


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_for_recorded_machines(name):
    facts, (expected, backends, changed) = recorded(name), DECISIONS[name]
    found = platform_of(facts)
    kind = found.vendor, found.architecture, found.unified, found.bf16, found.memory_share
    assert kind == expected
    assert found.versions["torch"] == facts["torch"]["torch"]
    chosen = choose_backends(facts["gates"], "auto", True)
    kinds = [f"{d}, {m}" for d in ("float32", "bfloat16") for m in ("masked", "unmasked")]
    assert tuple(chosen[kind] for kind in kinds) == backends
    changes = required_changes(facts["environment"], [found.architecture], facts["torch"]["hip"])
    assert {change.name: change.value for change in changes} == changed


def test_processors_and_apple():
    system = {"machine": "arm64", "name": "CPU M3", "memory": 10}
    facts = {"system": system, "torch": {"torch": "2.9"}, "device": None}
    assert platform_of(facts).vendor == "CPU"
    apple = platform_of({**facts, "device": {"type": "mps"}})
    assert (apple.vendor, apple.unified, apple.bf16) == ("Apple", True, False)
    assert apple.memory_share is None
    here = platform_of(read_facts(torch.device("cpu")))
    assert (here.vendor, here.versions["torch"]) == ("CPU", torch.__version__)
    assert here.memory > 1e8


CHIPS = {"gfx90a": True, "gfx942": True, "gfx1201": True, "gfx1030": False, "gfx906": False}
CAPABILITIES = {(7, 0): False, (7, 5): False, (8, 0): True, (12, 0): True}


@pytest.mark.parametrize("chip", [*CHIPS, *CAPABILITIES], ids=str)
def test_bf16_in_hardware_by_chip_and_capability(chip):
    nvidia = chip in CAPABILITIES
    facts = recorded("sm_90-torch2.11-cuda13.0" if nvidia else "gfx1100-torch2.7-rocm6.3")
    facts["device"] |= {"major": chip[0], "minor": chip[1]} if nvidia else {"gcnArchName": chip}
    assert platform_of(facts).bf16 is (CAPABILITIES[chip] if nvidia else CHIPS[chip])


GB = 10**9
MI300X = {"name": "AMD Instinct MI300X", "is_integrated": 0}


@pytest.mark.parametrize(
    ("gpus", "host", "device", "share"),
    [
        # Modes SPX, TPX and CPX, where the driver reports the memory of the part or of the whole.
        (4, 512, {"total_memory": 128 * GB, "multi_processor_count": 228}, 0.8),
        (12, 512, {"total_memory": 128 * GB // 3, "multi_processor_count": 76}, 0.8),
        (12, 512, {"total_memory": 128 * GB, "multi_processor_count": 76}, 0.8 / 3),
        (24, 512, {"total_memory": 128 * GB, "multi_processor_count": 38}, 0.8 / 6),
        # Another name, a virtual machine with one APU, memory that the firmware keeps.
        (4, 512, {"total_memory": 128 * GB, "name": "Aldebaran"}, 0.8),
        (1, 128, {"total_memory": 128 * GB}, 0.8),
        (4, 500, {"total_memory": 128 * GB}, 0.8 * 125 / 128),
        (None, 512, {"total_memory": 128 * GB}, 0.8),
        (8, 2000, {"total_memory": 206 * GB, **MI300X}, None),
        (8, 512, {"total_memory": 206 * GB, "name": "MI300A", "is_integrated": 0}, None),
    ],
)
def test_an_apu_is_what_the_driver_says_and_its_devices_share_the_memory(gpus, host, device, share):
    facts = recorded("gfx942-torch2.7-rocm6.3")
    facts["device"] |= device
    facts["system"] |= {"memory": host * GB, "gpus": gpus}
    found = platform_of(facts)
    assert found.unified is (share is not None)
    assert found.memory_share == (share and pytest.approx(share, rel=1e-6))


# --- this machine ------------------------------------------------------------------------------

CUDA, MPS = torch.cuda.is_available(), torch.backends.mps.is_available()


def test_devices_by_name():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if CUDA else "mps" if MPS else "cpu")


UNKNOWN = ["", "gpu", "cuda:x", "cuda:-1", "auto:1", "CPU", "cpu:1.5", "cuda:²", "cpu:٣"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_devices(name):
    with pytest.raises(InputError, match=r"--device: .* is unknown, expected auto, cpu, cuda"):
        choose_device(name)


def test_devices_that_are_not_there():
    absent = [name for name, there in (("cuda", CUDA), ("hip:0", CUDA), ("mps", MPS)) if not there]
    for name in absent:
        assert "pass --device auto" in refusal(choose_device, name)
    if CUDA:
        assert "are visible" in refusal(choose_device, "cuda:99")


@pytest.fixture
def _restored():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.usefixtures("_restored")
def test_threads_and_products(monkeypatch):
    for threads in (1, 2):
        assert prepare_device(RuntimeConfig(device="cpu", threads=threads)) == torch.device("cpu")
        assert torch.get_num_threads() == threads
        assert torch.get_float32_matmul_precision() == "highest"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 4}, raising=False)
    prepare_device(RuntimeConfig(device="cpu"))
    assert torch.get_num_threads() == 3, "all cores that this process may use"
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    prepare_device(RuntimeConfig(device="cpu"))
    assert torch.get_num_threads() == 2, "macOS knows no affinity"


@pytest.mark.usefixtures("_restored")
def test_deterministic_operations_are_asked_for_and_taken_back(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    prepare_device(RuntimeConfig(device="cpu", deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
    prepare_device(RuntimeConfig(device="cpu"))
    assert not torch.are_deterministic_algorithms_enabled()
