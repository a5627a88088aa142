"""The terminal of a command: log lines and progress bars on one console, plain lines anywhere else.

A person at a terminal sees lines wrapped between words and a bar below them. Where ``TERM`` is
``dumb`` or ``NO_COLOR`` is set there is no bar; where standard error is a file or a pipe each
message is one line as well.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Below this number of columns a bar shows neither rate nor remaining time.
NARROW = 70


def is_interactive() -> bool:
    """Whether standard error is a terminal on which a bar may be drawn."""
    return (
        sys.stderr.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("dumb", "unknown")
    )


@functools.cache
def shared_console() -> Console:
    """Return the one console on standard error, which keeps lines above a bar that is shown."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def wrapped(line: str, width: int) -> str:
    """Return a line broken between words to `width` columns; a longer word, such as a path, stays
    in one piece.
    """
    indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
    lines = textwrap.wrap(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return "\n".join(lines)


def write_line(line: str) -> None:
    """Write a line to standard error; on a terminal wrapped, and above a bar."""
    if is_interactive():
        console = shared_console()
        console.print(wrapped(line, console.width), soft_wrap=True)
    else:
        width = shared_console().width if sys.stderr.isatty() else 0
        print(wrapped(line, width) if width else line, file=sys.stderr, flush=True)


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
        from rich.progress import (
            BarColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        wide = shared_console().width >= NARROW
        counted = "{task.completed:.0f}/{task.total:.0f}" + (f" {unit}" if wide else "")
        columns: list[ProgressColumn | str] = [
            TextColumn("{task.description}"),
            BarColumn(None),
            counted,
        ]
        if wide:
            columns += ["{task.fields[rate]}", TimeRemainingColumn()]
        self._progress = Progress(
            *columns,
            console=shared_console(),
            disable=not is_interactive(),
            expand=True,
            transient=True,
        )
        self._task = self._progress.add_task(title, total=total, rate="")

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(
        self,
        completed: int,
        *,
        total: int | None = None,
        title: str | None = None,
        rate: str | None = None,
    ) -> None:
        """Show that `completed` of the total are done, and what else has changed."""
        self._progress.update(self._task, completed=completed, total=total, description=title)
        if rate is not None:
            self._progress.update(self._task, rate=rate)
