"""Job scripts of the examples."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aam.cli import main
from examples.eeg.__main__ import PROGRAM as EEG
from examples.htft.__main__ import PROGRAM as HTFT

SITE = """
title = "a small cluster"
partition = "gpu"
device = "cuda"
shared = "/shared/{user}"
local = "/scratch/{user}"
setup = ["module load python"]
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="slurm/ needs Python 3.11")
@pytest.mark.parametrize("program", [EEG, HTFT], ids=lambda program: program.name)
def test_a_job_script_runs_the_command_and_asks_to_be_queued_again(program, tmp_path, capsys):
    (tmp_path / "small.toml").write_text(SITE)
    words = f"submit --site {tmp_path}/small.toml --devices 2 --hours 2 --words".split()
    assert main([*words, "train --output-dir 'a b'"], program) == 0
    script = capsys.readouterr().out
    for line in (
        "#SBATCH --partition=gpu",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --time=120",
        "module load python || exit 1",
    ):
        assert line in script
    assert f"-m {program.name} train --output-dir 'a b' --resume-from auto --distributed" in script
    assert '[ "$status" != 85 ] || scontrol requeue "$SLURM_JOB_ID"' in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_what_is_not_given_is_named(refused):
    assert "--words: not given" in refused(main, ["submit"], EEG)
