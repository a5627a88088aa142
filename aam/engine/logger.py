"""The records of a run: metrics.jsonl, TensorBoard; and the terminal.

A person at a terminal sees lines wrapped between words and a bar below them. Where ``TERM`` is
``dumb`` or ``NO_COLOR`` is set there is no bar; where standard error is a file or a pipe each
message is one line as well. Commands show their lines before torch is imported, so nothing that
takes long is imported on top.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from aam.files.atomic import write_text

if TYPE_CHECKING:
    from rich.console import Console

    from aam.engine.run import TrainingFolder
    from aam.engine.trainer import Trainer

log = logging.getLogger("aam")

Record = dict[str, Any]

# What is logged of each step and epoch.
METRICS = "metrics.jsonl"

# Metrics of an epoch that the terminal shows.
PROGRESS_METRICS: tuple[str, ...] = (
    "train_loss",
    "val_loss",
    "val_mae",
    "val_r",
    "val_r2",
    "val_accuracy",
)
PROGRESS_METRICS += ("val_perplexity", "samples_per_s")

# Below this number of columns a bar shows neither rate nor remaining time.
NARROW = 70


def flatten(value: Any, name: str = "") -> Record:
    """Return nested dicts as one dict with dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    flat: Record = {}
    for key, inner in value.items():
        flat |= flatten(inner, f"{name}.{key}" if name else key)
    return flat


# --- the terminal ---------------------------------------------------------------------------------


def is_interactive() -> bool:
    """Whether standard error is a terminal on which a bar may be drawn."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    return sys.stderr.isatty() and not is_plain


@functools.cache
def shared_console() -> Console:
    """Return the one console on standard error, which keeps lines above a bar that is shown."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def write_line(line: str) -> None:
    """Write a line to standard error; on a terminal above a bar and wrapped between words, where a
    longer word, such as a path, stays in one piece.
    """
    if sys.stderr.isatty():
        indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
        wrapper = textwrap.TextWrapper(shared_console().width, subsequent_indent=indent)
        wrapper.break_long_words = wrapper.break_on_hyphens = wrapper.replace_whitespace = False
        line = wrapper.fill(line)
    if is_interactive():
        shared_console().print(line, soft_wrap=True)
    else:
        print(line, file=sys.stderr, flush=True)


class TerminalHandler(logging.Handler):
    """Writes the messages of a log with `write_line`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        try:
            write_line(self.format(record))
        except (OSError, ValueError):
            self.handleError(record)


class ProgressBar:
    """A bar that shows how far a long computation is; a context manager that removes it at the end.

    Parameters
    ----------
    title : str
        What is computed.
    total : int
        Its length, in `unit`.
    unit : str
        What is counted, in the plural.
    """

    def __init__(self, title: str, total: int, unit: str = "steps") -> None:
        from rich.progress import BarColumn, Progress, TimeRemainingColumn

        console, counted = shared_console(), "{task.completed:.0f}/{task.total:.0f}"
        columns: list[Any] = ["{task.description}", BarColumn(None), counted]
        if console.width >= NARROW:
            columns[2:] = [f"{counted} {unit}", "{task.fields[rate]}", TimeRemainingColumn()]
        layout: Record = {"console": console, "expand": True, "transient": True}
        self._progress = Progress(*columns, disable=not is_interactive(), **layout)
        self._task = self._progress.add_task(title, total=total, rate="")

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, completed: int, **changes: Any) -> None:
        """Show that `completed` of the total are done, and what else has changed: its `total`,
        `description` or `rate`.
        """
        self._progress.update(self._task, completed=completed, **changes)


# --- TensorBoard ----------------------------------------------------------------------------------


class EventFile:
    """An event file of TensorBoard, written without a thread, so that a full disk is noticed here:
    it ends the file with a warning, and not the run.

    The format is that of ``tensorboard.compat.proto.event_pb2``.

    Parameters
    ----------
    folder : Path
        Folder of all event files of the run.
    step : int
        The step after which the file begins; TensorBoard then hides later steps of earlier files.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self.folder, self.failed = folder, False
        self.file: BinaryIO | None = None
        start = {"step": step + 1, "session_log": SessionLog(status=SessionLog.START)}
        self._write({"file_version": "brain.Event:2"}, *([start] if step else []))

    def _write(self, *events: Record) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        try:
            if self.file is None:
                self.folder.mkdir(exist_ok=True)
                name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
                self.file = (self.folder / name).open("ab")
                self.records = RecordWriter(self.file)
            for event in events:
                self.records.write(Event(wall_time=time.time(), **event).SerializeToString())
            self.file.flush()
        except OSError as error:
            log.warning("%s: not written any more (%s)", self.folder, error)
            self.failed = True

    def add(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the metrics of a step."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        if not self.failed:
            self._write({"step": step, "summary": Summary(value=values)})


# --- the records of a run -----------------------------------------------------------------------


def metrics_of(record: Record) -> dict[str, float]:
    """Return the numbers of a record of metrics.jsonl, as ``step/train_loss`` or
    ``epoch/val_loss``.
    """
    numbers = {n: value for n, value in record.items() if isinstance(value, (int, float))}
    return {f"{record['event']}/{n}": float(value) for n, value in numbers.items() if n != "step"}


class RunLogger:
    """Writes the records of a training loop; a context manager that closes its files.

    Records that cannot be written, on a full disk, are kept, logged once, and written when there is
    room again.

    Parameters
    ----------
    folder : TrainingFolder
        Gets ``metrics.jsonl`` and ``tensorboard/``. Its state, of a run that was interrupted, has
        the clock and the records until then.
    trainer : Trainer
        Knows the length of the training and the units of its metrics.
    """

    def __init__(self, folder: TrainingFolder, trainer: Trainer) -> None:
        state, epochs = folder.state, trainer.options.epochs
        before: Record = {"seconds": 0.0, "step": 0} if state is None else state.facts["logger"]
        text = "" if state is None else state.texts.get(METRICS, "")
        folder.path.mkdir(parents=True, exist_ok=True)
        self.path, self.title, self.epochs = folder.path / METRICS, folder.title, epochs
        self.units = trainer.task.units
        self.steps, self.started = before["step"], time.perf_counter() - before["seconds"]
        self.lines, self.failed = text.splitlines(keepends=True), False
        self._write("", rewrite=True)
        self.board = EventFile(folder.path / "tensorboard", self.steps)
        self.progress = ProgressBar(f"{self.title}, epoch 1/{epochs}", trainer.total_steps)

    def __enter__(self) -> RunLogger:
        self.progress.__enter__()
        self.progress.update(self.steps)
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.__exit__()
        if self.failed:
            self._write("")
        if self.board.file is not None:
            self.board.file.close()

    def state(self) -> Record:
        """State of the clock and the step for a checkpoint; `text` holds the records."""
        return {"seconds": time.perf_counter() - self.started, "step": self.steps}

    @property
    def text(self) -> str:
        """All records so far, as metrics.jsonl holds them."""
        return "".join(self.lines)

    def record(self, record: Record) -> None:
        """Write one record of the loop: ``event`` is ``step`` or ``epoch``; steps without metrics
        only move the bar.
        """
        if record["event"] == "step":
            self.steps = record["step"]
            self.progress.update(self.steps)
            if "train_loss" not in record:
                return
        seconds = round(time.perf_counter() - self.started, 3)
        record = {**record, "step": self.steps, "seconds": seconds}
        self._write(json.dumps(record) + "\n")
        self.board.add(metrics_of(record), self.steps)
        if record["event"] == "epoch":
            self._show(record)

    def _show(self, record: Record) -> None:
        """Show an epoch on the terminal."""
        epoch, remaining = record["epoch"], self.epochs - record["epoch"]
        title = f"{self.title}, epoch {min(epoch + 1, self.epochs)}/{self.epochs}"
        rate = f"{record['samples_per_s']:.0f} samples/s" if "samples_per_s" in record else ""
        self.progress.update(self.steps, description=title, rate=rate)
        metrics = ", ".join(
            f"{name} {record[name]:.4g} {self.units.get(name, '')}".rstrip()
            for name in PROGRESS_METRICS
            if name in record
        )
        seconds = record["seconds"] / epoch * remaining if epoch else 0
        time_left = f", {seconds:.0f} s left at most" if seconds else ""
        log.info("%s epoch %d/%d: %s%s", self.title, epoch, self.epochs, metrics, time_left)

    def _write(self, line: str, rewrite: bool = False) -> None:
        self.lines += [line] if line else []
        try:
            if self.failed or rewrite:
                write_text(self.path, self.text)
            else:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line)
            self.failed = False
        except OSError as error:
            if not self.failed:
                text = "%s: not written (%s); training continues, and it is tried again"
                log.warning(text, self.path, error)
            self.failed = True
