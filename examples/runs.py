"""Runs of the examples: a task of rows of a data set, what a command saves, several ranks."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from aam.device.distributed import SINGLE, World, start_ranks
from aam.device.rng import generator
from aam.engine.checkpoint import State, load, save
from aam.engine.run import LAST, MODEL, Run
from aam.engine.task import Task
from aam.engine.trainer import fit
from aam.errors import RunError
from aam.options import TrainingOptions


class RowsTask(Task):
    """A task whose batches are rows of a data set, in an order by seed and epoch; the ranks share
    each batch.

    A subclass overrides `take` and `losses`. What `take` returns has ``to(device)`` and a length.

    Parameters
    ----------
    model : nn.Module
    rows : ndarray
        int ``[N]``: the rows to train on.
    batch_size : int
        Rows of a batch on each rank.
    seed : int
    device : torch.device
    world : World
    splits_batches : bool
        Whether each rank has its own rows of a batch; otherwise all have the same.
    """

    def __init__(
        self,
        model: nn.Module,
        rows: npt.NDArray[np.int64],
        batch_size: int,
        seed: int,
        device: torch.device,
        world: World = SINGLE,
        splits_batches: bool = True,
    ) -> None:
        self.model = model.to(device)
        self.rows, self.seed, self.device, self.world = rows, seed, device, world
        self.splits_batches = splits_batches
        self.ranks = world.size if splits_batches else 1
        self.batch_rows = batch_size * self.ranks
        self.batches_per_epoch = -(-len(rows) // self.batch_rows)

    def take(self, rows: Tensor) -> Any:
        """Return the batch of these rows."""
        raise NotImplementedError

    def order(self, epoch: int) -> Tensor:
        """Return the rows of an epoch in their order, ``[N]``; of ``[N, k]`` the k rows stay on one
        rank.
        """
        return torch.from_numpy(generator(self.seed, "order", epoch).permutation(self.rows))

    def batches(self, epoch: int, skip: int) -> Iterator[Any]:
        """Yield the batches of an epoch, this rank's share of each."""
        for rows in self.order(epoch).split(self.batch_rows)[skip:]:
            place = self.world.rank if self.ranks > 1 else 0
            yield self.take(rows.tensor_split(self.ranks)[place].flatten())

    def prepare(self, batch: Any, number: int) -> Any:
        """Return a batch on the device."""
        return batch.to(self.device)

    def samples(self, batch: Any) -> int:
        """Return the rows of a batch on all ranks."""
        return len(batch) * self.ranks


def fit_and_save(
    make_task: Callable[[], Task],
    options: TrainingOptions,
    run: Run,
    folder: Path,
    title: str,
    description: dict[str, Any],
) -> State:
    """Train a task in `folder` unless that is done, write its best and last weights there, and
    return the best.

    Parameters
    ----------
    make_task : callable
        Makes the task, with new weights.
    description : dict
        What is needed to build the model again, as values of JSON; stands with the weights and in
        what is returned.
    """
    best = None
    for path, name in run.unfinished({folder: title}):
        with run.training(path, name) as training:
            trainer = fit(make_task(), options, training)
            facts = {**description, "best_epoch": trainer.progress.best_epoch}
            best = State(trainer.best_weights, facts)
            save(path / LAST, State(trainer.last_weights, facts), run.world)
            save(path / MODEL, best, run.world)
    return load(folder / MODEL) if best is None else best


def run_ranks(size: int, words: Sequence[str], program: str) -> list[str]:
    """Run ``python -m program`` with the command line `words` as `size` ranks here; return what
    each has printed.

    Raises
    ------
    RunError
        A rank ended with another exit status than 0.
    """
    ranks = start_ranks(size, words, program, stdout=subprocess.PIPE, text=True)
    outputs = [rank.communicate()[0] for rank in ranks]
    if failed := [number for number, rank in enumerate(ranks) if rank.returncode]:
        command = shlex.join([program, *words])
        raise RunError(
            f"{command}: rank {failed[0]} ended with exit status {ranks[failed[0]].returncode}"
        )
    return outputs
