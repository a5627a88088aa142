"""The first tensor of a device in a child process, which may crash without harm."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aam.device import allocation
from aam.device.allocation import first_tensor

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)  # {}"


def test_a_healthy_device_says_nothing():
    assert first_tensor("cpu") == ""


@pytest.mark.parametrize(
    ("program", "seconds", "failure"),
    [
        (CRASH, 60, "ended with SIGSEGV"),
        (
            "raise RuntimeError('HIP error: no kernel image')",
            60,
            "RuntimeError: HIP error: no kernel image",
        ),
        ("import sys; sys.exit(3)", 60, "ended with status 3"),
        ("import time; time.sleep(60)", 0.2, "took longer than 0.2 s"),
    ],
)
def test_a_failure_is_described(program, seconds, failure):
    assert first_tensor("cuda:0", program, seconds) == failure


@pytest.mark.parametrize(("hip", "remedy"), [("6.3", "without --rocm"), (None, "nvidia-smi")])
def test_all_devices_of_a_node_are_checked(monkeypatch, capsys, hip, remedy):
    monkeypatch.setattr("torch.version.hip", hip)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr(
        allocation, "first_tensor", lambda name: "ended with SIGSEGV" if name == "cuda:2" else ""
    )
    assert allocation.main() == 1
    message = capsys.readouterr().err
    assert message.startswith(f"cuda:2: the first tensor ended with SIGSEGV; {remedy}")
    assert message.count("\n") == 1
    monkeypatch.setattr(allocation, "first_tensor", lambda name: "")
    assert allocation.main() == 0


def test_a_job_on_a_node_whose_gpu_torch_does_not_see_says_so():
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "aam.device.allocation"],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "torch sees none: the job computes on the CPU" in done.stderr
