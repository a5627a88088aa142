"""How a run writes: its folder, metrics.jsonl, TensorBoard, and progress to look at."""

from __future__ import annotations

import json
import logging
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from aam.errors import InputError

log = logging.getLogger("aam")

Record = dict[str, Any]
# One of these stands in the folder of every run, evaluation and embedding.
RESULTS = ("run.json", "predictions.tsv", "metrics.json", "samples.tsv", "samples.npy")
SHOWN = ("train_loss", "val_loss", "val_mae", "val_r2", "val_accuracy", "samples_per_s")


def open_output(folder: Path, overwrite: bool) -> None:
    """Make the folder of a command's results; with `overwrite` an earlier one, and no other, is removed first."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not any((folder / name).is_file() for name in RESULTS):
            raise InputError(
                f"--output-dir: {folder} holds files, none of them of aam, and is left alone; choose another"
            )
        if not overwrite:
            raise InputError(f"--output-dir: {folder} holds results already; choose another folder or pass --overwrite")
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output-dir: {folder} cannot be made ({error.strerror})") from None


class Journal:
    """Takes the records of a training loop; a context manager that closes its files.

    Parameters
    ----------
    folder : Path
        Run directory; gets ``metrics.jsonl`` and ``tensorboard/``.
    title : str
        What is trained, for the progress line.
    steps, epochs : int
        Length of the run.
    """

    def __init__(self, folder: Path, title: str, steps: int, epochs: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self.title, self.epochs, self.steps = title, epochs, 0
        self.started = time.perf_counter()
        self.file = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        self.board = SummaryWriter(str(folder / "tensorboard"))
        console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, {task.fields[rate]} samples/s,"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.bar = self.progress.add_task(title, total=steps, rate="-")

    def __enter__(self) -> Journal:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
        self.file.close()
        self.board.close()

    def report(self, record: Record) -> None:
        """Take one record of the loop: ``event`` is ``step`` or ``epoch``."""
        if record["event"] == "step":
            self.steps = record["step"]
            self.progress.update(self.bar, completed=self.steps)
            return
        record = {**record, "step": self.steps, "seconds": round(time.perf_counter() - self.started, 3)}
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        for name, value in record.items():
            if isinstance(value, float):
                self.board.add_scalar(name, value, self.steps)
        if "samples_per_s" in record:
            self.progress.update(self.bar, rate=f"{record['samples_per_s']:.0f}")
        figures = ", ".join(f"{name} {record[name]:.4g}" for name in SHOWN if name in record)
        epoch, left = record["epoch"], self.epochs - record["epoch"]
        rest = f", {record['seconds'] / epoch * left:.0f} s left at most" if epoch and left else ""
        log.info("%s epoch %d/%d: %s%s", self.title, epoch, self.epochs, figures, rest)
