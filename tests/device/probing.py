"""One of several ranks that ask the probe together, for test_probe.py.

``python probing.py FAULT`` prints the verdict, of a first question and of a second one.
"""

from __future__ import annotations

import json
import sys

import torch

from aam.device.distributed import end_rank, process_group
from aam.device.probe import ProbeSpec, verdict
from aam.options import RunConfig

if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group(RunConfig(device="cpu", distributed=True)) as world:
        options, seconds = {"how": sys.argv[1]}, 25.0 if sys.argv[1] == "hang" else 250.0
        spec = ProbeSpec(
            "tests.device.trials:meet", options, torch.device("cpu"), seconds, world, together=True
        )
        found = [verdict("meet", spec) for _ in range(2)]
        assert found[0] == found[1], "kept"
        print(json.dumps([found[0].ok, found[0].reason]), end="")
    end_rank(0)
