"""What is said of bad input by a function that raises an error; the fixture `refused` gives what a
command says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aam.errors import InputError


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the problems of the `InputError` with which a call must end, one a line."""
    try:
        call(*arguments, **options)
    except InputError as error:
        return str(error)
    pytest.fail("no InputError was raised")
