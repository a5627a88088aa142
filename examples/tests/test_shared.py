"""What the examples share: tasks whose batches are rows of a data set (each row once in an epoch,
resume in the middle), job scripts, and the search for options.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from aam.cli import main
from aam.device.distributed import World
from aam.errors import BAD_INPUT, FINISHED
from examples.eeg.__main__ import PROGRAM as EEG
from examples.htft.__main__ import PROGRAM as HTFT
from examples.runs import RowsTask
from tests.programs import absent, run_program

ROWS = np.arange(100, 123)
CPU = torch.device("cpu")


class Echo(RowsTask):
    """Batches are the numbers of their rows."""

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class Pairs(Echo):
    """Rows in pairs of neighbours."""

    def order(self, epoch: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[:22]).view(-1, 2)


def make_task(kind: type[Echo] = Echo, rank: int = 0, size: int = 1, splits: bool = True) -> Echo:
    return kind(torch.nn.Linear(1, 1), ROWS, 4, 7, CPU, World(rank, size), splits)


def batches_of(task: RowsTask, epoch: int, skip: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in task.batches(epoch, skip)]


def test_an_epoch_has_each_row_once_in_an_order_of_its_own():
    task = make_task()
    first, again, other = (batches_of(task, epoch) for epoch in (0, 0, 1))
    assert len(first) == task.batches_per_epoch == 6
    assert sorted(row for batch in first for row in batch) == ROWS.tolist()
    assert first == again != other
    assert batches_of(task, 0, skip=2) == first[2:]
    assert task.samples(torch.tensor(first[0])) == 4


@pytest.mark.parametrize("kind", [Echo, Pairs])
def test_ranks_share_the_batches_of_one(kind):
    ranks = [batches_of(make_task(kind, rank, 2), 3) for rank in range(2)]
    whole = kind(torch.nn.Linear(1, 1), ROWS, 8, 7, CPU)
    assert [one + other for one, other in zip(*ranks, strict=True)] == batches_of(whole, 3)
    if kind is Pairs:
        assert all(batch[0::2] == [row - 1 for row in batch[1::2]] for batch in ranks[0])


def test_ranks_that_share_the_model_have_the_same_batches():
    one, other = (make_task(Echo, rank, 2, splits=False) for rank in range(2))
    assert batches_of(one, 0) == batches_of(other, 0) == batches_of(make_task(), 0)


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
    lines = ["#SBATCH --partition=gpu", "#SBATCH --ntasks-per-node=2", "#SBATCH --time=120"]
    lines += ["module load python || exit 1"]
    lines += [f"-m {program.name} train --output-dir 'a b' --resume-from auto --distributed"]
    lines += ['[ "$status" != 85 ] || scontrol requeue "$SLURM_JOB_ID"']
    assert absent(script, *lines) == []
    run_program("bash", "-n", input=script)
    assert main(["submit"], program) == BAD_INPUT
    assert "--words: not given" in capsys.readouterr().err


@pytest.mark.slow
def test_a_search_goes_on_and_names_the_best_options(simulate_study, tmp_path, capsys, monkeypatch):
    pytest.importorskip("optuna")
    from examples.tune import __main__ as tune

    study = simulate_study(samples=40, asvs=60)
    monkeypatch.setattr(tune, "SPACE", {"--members": ("presence", "forest")})
    words = f"--table {study}/table.biom --metadata {study}/metadata.tsv --metadata-column ph"
    words += f" --rarefy-depth 300 --threads 1 --output-dir {tmp_path}/tuned --trials"
    assert tune.main([*words.split(), "1"]) == FINISHED
    assert tune.main([*words.split(), "2"]) == FINISHED
    assert "best: --members " in capsys.readouterr().out
    runs = sorted(path.name for path in (tmp_path / "tuned").glob("trial-*"))
    assert runs == ["trial-0", "trial-1"]
    words = f"--table {tmp_path}/none.biom --output-dir {tmp_path}/none"
    assert tune.main(words.split()) == BAD_INPUT
    assert "none.biom: no such file" in capsys.readouterr().err
