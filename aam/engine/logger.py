"""The log of a run: metrics.jsonl, TensorBoard, and progress on the terminal."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from aam.runtime.files import write_text
from aam.runtime.terminal import ProgressBar

log = logging.getLogger("aam")


Record = dict[str, Any]

SHOWN = ("train_loss", "val_loss", "val_mae", "val_r2", "val_accuracy", "samples_per_s")


class EventFile:
    """TensorBoard's event file, written without a thread of its own, so that a full disk is an error here.

    The format is that of ``tensorboard.compat.proto.event_pb2``; TensorBoard leaves out what files before say of
    steps after `step`, where this one begins.
    """

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
        self.file = (folder / name).open("ab")
        self.records = RecordWriter(self.file)
        self._add(file_version="brain.Event:2")
        if step:
            self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def _add(self, **content: Any) -> None:
        self.records.write(Event(wall_time=time.time(), **content).SerializeToString())

    def add(self, figures: dict[str, float], step: int) -> None:
        """Write the figures of a step."""
        for name, value in figures.items():
            self._add(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))
        self.file.flush()


class RunLogger:
    """Takes the records of a training loop; a context manager that closes its files.

    What cannot be written, on a full disk, is kept, said once, and written when there is room again.

    Parameters
    ----------
    folder : Path
        Run directory; gets ``metrics.jsonl`` and ``tensorboard/``.
    title : str
        What is trained, for the progress line.
    steps, epochs : int
        Length of the run.
    before : Record
        What `facts` gave when the run was interrupted; nothing for a new run.
    """

    def __init__(self, folder: Path, title: str, steps: int, epochs: int, before: Record | None = None) -> None:
        before = before or {"lines": [], "seconds": 0.0, "step": 0}
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.lines, self.failed = folder / "metrics.jsonl", list(before["lines"]), False
        self.title, self.epochs, self.steps = title, epochs, before["step"]
        self.started = time.perf_counter() - before["seconds"]
        self.board: EventFile | None = None
        self._write("", whole=True)
        try:
            self.board = EventFile(folder / "tensorboard", self.steps)
        except OSError as error:
            log.warning("%s: TensorBoard's files are not written (%s)", folder, error)
        self.progress = ProgressBar(f"{title}, epoch 1/{epochs}", steps)

    def __enter__(self) -> RunLogger:
        self.progress.__enter__()
        self.progress.update(self.steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.__exit__(kind, error, trace)
        if self.failed:
            self._write("")
        if self.board is not None:
            self.board.file.close()

    def facts(self) -> Record:
        """What a checkpoint keeps of it."""
        return {"lines": self.lines, "seconds": time.perf_counter() - self.started, "step": self.steps}

    def report(self, record: Record) -> None:
        """Take one record of the loop: ``event`` is ``step`` or ``epoch``; steps without figures only move the bar."""
        if record["event"] == "step":
            self.steps = record["step"]
            self.progress.update(self.steps)
            if "train_loss" not in record:
                return
        record = {**record, "step": self.steps, "seconds": round(time.perf_counter() - self.started, 3)}
        self._write(json.dumps(record) + "\n")
        self._show({f"{record['event']}/{n}": value for n, value in record.items() if isinstance(value, float)})
        if record["event"] == "step":
            return
        figures = ", ".join(f"{name} {record[name]:.4g}" for name in SHOWN if name in record)
        epoch, left = record["epoch"], self.epochs - record["epoch"]
        rate = f"{record['samples_per_s']:.0f} samples/s" if "samples_per_s" in record else None
        self.progress.update(
            self.steps, title=f"{self.title}, epoch {min(epoch + 1, self.epochs)}/{self.epochs}", rate=rate
        )
        rest = f", {record['seconds'] / epoch * left:.0f} s left at most" if epoch and left else ""
        log.info("%s epoch %d/%d: %s%s", self.title, epoch, self.epochs, figures, rest)

    def _write(self, line: str, whole: bool = False) -> None:
        self.lines += [line] if line else []
        try:
            if self.failed or whole:
                write_text(self.path, "".join(self.lines))
            else:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line)
            self.failed = False
        except OSError as error:
            if not self.failed:
                log.warning("%s: not written (%s); training goes on, and it is tried again", self.path, error)
            self.failed = True

    def _show(self, figures: dict[str, float]) -> None:
        try:
            if self.board is not None:
                self.board.add(figures, self.steps)
        except OSError as error:
            log.warning("%s: TensorBoard's files are not written any more (%s)", self.path.parent, error)
            self.board = None
