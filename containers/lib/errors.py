"""Errors that carry all problems at once and the exit status of the program."""

from __future__ import annotations

FAILED = 1
BAD_INPUT = 2


class InputError(Exception):
    """Input that cannot be used.

    Parameters
    ----------
    problems
        One line for each problem: the value, what was expected, and the option to change.
    status
        The exit status that the program ends with.
    """

    def __init__(self, *problems: str, status: int = BAD_INPUT) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.status = status


class FailedError(InputError):
    """A correct request that failed while it was carried out."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems, status=FAILED)


def raise_if_any(problems: list[str]) -> None:
    """Raise one `InputError` with all problems, if there are any."""
    if problems:
        raise InputError(*problems)


def error_message(program: str, error: InputError) -> str:
    """Return the text that a program prints for an error: its name, then one indented line for each
    problem.
    """
    return "\n".join([f"{program}:", *(f"  {problem}" for problem in error.problems)])
