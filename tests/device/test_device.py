"""The choice of device and threads."""

from __future__ import annotations

import os

import pytest
import torch

from aam.device.device import choose_device, prepare_device, slug
from aam.device.options import RuntimeConfig
from aam.errors import InputError

CUDA, MPS = torch.cuda.is_available(), torch.backends.mps.is_available()


def test_devices_by_name():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if CUDA else "mps" if MPS else "cpu")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:x", "cuda:-1", "auto:1", "CPU", "cpu:1.5"])
def test_unknown_devices(name):
    with pytest.raises(InputError, match=r"--device: .* is unknown, expected auto, cpu, cuda"):
        choose_device(name)


def test_devices_that_are_not_there():
    absent = [name for name, there in (("cuda", CUDA), ("hip:0", CUDA), ("mps", MPS)) if not there]
    for name in absent:
        with pytest.raises(InputError, match="--device auto takes what is"):
            choose_device(name)
    if CUDA:
        with pytest.raises(InputError, match="are visible"):
            choose_device("cuda:99")


@pytest.fixture
def _restored():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.usefixtures("_restored")
def test_threads_and_products():
    assert prepare_device(RuntimeConfig(device="cpu", threads=1)) == torch.device("cpu")
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (1, "highest")
    prepare_device(RuntimeConfig(device="cpu", threads=2, tf32=True))
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (2, "high")


@pytest.mark.usefixtures("_restored")
def test_all_cores_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 4}, raising=False)
    prepare_device(RuntimeConfig(device="cpu"))
    assert torch.get_num_threads() == 3
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


def test_names_of_devices_become_names_of_files():
    assert slug("CPU AMD EPYC (TM) 9R14, 2 threads") == "cpu-amd-epyc-tm-9r14-2-threads"
