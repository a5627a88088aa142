"""The first tensor of a device in a child process, which may crash without harm."""

from __future__ import annotations

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


@pytest.mark.parametrize(("hip", "hint"), [("6.3", "without --rocm"), (None, "nvidia-smi")])
def test_all_devices_of_a_node_are_checked(monkeypatch, capsys, hip, hint):
    monkeypatch.setattr("torch.version.hip", hip)
    monkeypatch.setattr("torch.version.cuda", None if hip else "12.6")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr(
        allocation, "first_tensor", lambda name: "ended with SIGSEGV" if name == "cuda:2" else ""
    )
    words = ["--device", "hip" if hip else "cuda", "--devices", "4"]
    assert allocation.main(words) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"cuda:2: the first tensor ended with SIGSEGV; {hint}")
    assert message.count("\n") == 1
    monkeypatch.setattr(allocation, "first_tensor", lambda name: "")
    assert allocation.main(words) == 0


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
    found = allocation.device_problem(kind, 4, built, count)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
