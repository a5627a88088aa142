"""The kernels of a module that `generate` wrote, with what they are compiled for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Kernel(NamedTuple):
    """A kernel of Triton: the types of its arguments, the arguments that are multiples of 16, and
    for each variant the sizes of its blocks and the options of the compiler.
    """

    function: Any
    signature: dict[str, str]
    aligned: list[str]
    variants: tuple[dict[str, int], ...]


KERNELS: list[Kernel] = []


def kernel(
    signature: dict[str, str], aligned: list[str], *variants: dict[str, int]
) -> Callable[[Any], Any]:
    """Add the decorated function to `KERNELS`."""

    def add(function: Any) -> Any:
        KERNELS.append(Kernel(function, signature, aligned, variants))
        return function

    return add
