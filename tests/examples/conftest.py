"""Ranks of a program on this machine, and files of the examples."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., list[int]]:
    """Runs ``python WORDS`` on so many ranks of this machine with one thread each; returns their exit statuses."""

    def run(size: int, *words: object) -> list[int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        path = os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))
        shared = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        shared |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, *map(str, words)]
        ranks = [subprocess.Popen(command, env={**shared, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(size)]
        return [rank.wait(300) for rank in ranks]

    return run
