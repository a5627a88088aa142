"""Signals: training saves after its step and ends; a second signal ends the process; child
processes ignore both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from aam.device.distributed import SINGLE
from aam.engine.checkpoint import CheckpointManager, State
from aam.engine.signals import Signals
from aam.errors import CallAgain
from aam.options import RunConfig


def make_state() -> State:
    return State({"weight": torch.ones(2)}, {})


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR2", "SIGINT"])
def test_a_signal_in_training_saves_after_the_step(tmp_path, name):
    before = signal.getsignal(getattr(signal, name))
    with Signals() as signals:
        manager = CheckpointManager(tmp_path, RunConfig(checkpoint_minutes=10.0), signals)
        with signals:
            manager.maybe_save(1, make_state)
            os.kill(os.getpid(), getattr(signal, name))
            assert signals.caught == name
            with pytest.raises(CallAgain, match=rf"{name} came, .*step-2 is saved"):
                manager.maybe_save(2, make_state)
        assert [path.name for path in tmp_path.iterdir()] == ["step-2"]
        with pytest.raises(CallAgain, match="what is trained is saved"):
            signals.raise_if_requested(SINGLE)
    assert signal.getsignal(getattr(signal, name)) == before


def test_a_signal_outside_training_ends_the_run_at_once():
    with pytest.raises(CallAgain, match="nothing to save"), Signals():
        os.kill(os.getpid(), signal.SIGUSR2)


def test_a_second_signal_ends_the_process_at_once():
    source = """if True:
        import os, signal
        from aam.engine.signals import Signals
        with Signals() as signals, signals:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGUSR2)
            print(signals.caught, flush=True)
            Signals.GRACE = -1.0
            os.kill(os.getpid(), signal.SIGTERM)
            print("never")
    """
    process = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stdout) == (1, "SIGTERM\n")


def test_a_child_process_ignores_the_signal():
    with Signals() as signals:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0 if signals.caught == "" else 3)
        assert os.waitpid(child, 0)[1] == 0
