"""Errors with their problems, the exit statuses (`cli.py` decides which), and libraries that
may be missing.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType

FINISHED = 0
FAILED = 1
BAD_INPUT = 2
CALL_AGAIN = 85
# The signals with which a scheduler or a person ends a process.
WARNINGS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
# How numpy, torch on a CPU and torch on a GPU report that memory is full.
OUT_OF_MEMORY = re.compile(r"MemoryError|can't allocate memory|out of memory", re.IGNORECASE)
# What it means when torch says, at any place, that a DataLoader worker has ended.
KILLED = "a process that prepares batches was killed, perhaps because memory was full"
# Letters of a value that a message shows.
MOST_LETTERS = 200


class InputError(ValueError):
    """Bad input from the user; carries every problem found, so that one message shows all.

    Each problem is one sentence that names the place, the value found, the value expected and the
    option that mends it.
    """

    def __init__(self, *problems: str) -> None:
        # Two readers may find the same problem.
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))


def problem(place: object, fault: str, expected: str = "", remedy: str = "") -> str:
    """Return the sentence of a problem: where it is, what stands there, what belongs there, and how
    it is mended.
    """
    belongs = f", expected {expected}" if expected else ""
    return f"{place}: {fault}{belongs}{f'; {remedy}' if remedy else ''}"


@contextlib.contextmanager
def reworded(errors: tuple[type[Exception], ...], words: str, remedy: str = "") -> Iterator[None]:
    """Raise errors of these kinds as an `InputError` of `words`, the error and its remedy; an
    `InputError` stays.
    """
    try:
        yield
    except InputError:
        raise
    except errors as error:
        raise InputError(f"{words} ({error!s:.300}){remedy}") from error


class UnlikeTrainingWarning(UserWarning):
    """Samples are predicted though training lacks the features of nearly all their reads."""


class RunError(Exception):
    """A run cannot go on, though nothing was wrong with its input; the message says what can be
    done.
    """


class CallAgain(BaseException):
    """A run ends early, its state saved, and wants to be called again; like KeyboardInterrupt no
    error.
    """


class Problems:
    """Collects problems while checking, then raises them together."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, problem: str) -> None:
        """Add one problem."""
        self.messages.append(problem)

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Add every problem of an `InputError` that is raised within, and go on behind it."""
        try:
            yield
        except InputError as error:
            self.messages.extend(error.problems)

    def raise_if_any(self) -> None:
        """Raise `InputError` with all problems collected so far, if there is one."""
        if self.messages:
            raise InputError(*self.messages)


def refuse(where: object, rules: Mapping[str, bool]) -> None:
    """Raise `InputError` with every problem of `rules` that is there, each after the place."""
    if problems := [f"{where}: {problem}" for problem, is_there in rules.items() if is_there]:
        raise InputError(*problems)


def short(value: object) -> str:
    """Return the text of a value for a message, cut to `MOST_LETTERS` letters."""
    text = str(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"


def shown(values: Iterable[object], limit: int = 5) -> str:
    """Return a short quoted listing of values for a message: the first few, then how many more."""
    items = list(values)
    text = ", ".join(repr(short(item)) for item in items[:limit])
    return text if len(items) <= limit else f"{text} and {len(items) - limit} more"


def import_extra(module: str, extra: str, feature: str) -> ModuleType:
    """Import a library of an extra; `InputError` says in one line what needs it and how to install
    it.
    """
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        remedy = f"pip install 'attention-all-microbes[{extra}]'"
        raise InputError(f"{feature} needs {library}, which is not installed: {remedy}") from None
