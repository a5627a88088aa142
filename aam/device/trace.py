"""Operations of a piece of work, as a device would get them: how many, of which shapes, and where
the host waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that start no kernel: views, and memory that is not filled.
VIEWS = frozenset(
    """
    view _unsafe_view t transpose permute unsqueeze squeeze expand slice select split unbind detach
    alias as_strided split_with_sizes _reshape_alias empty empty_like new_empty unflatten lift_fresh
    empty_strided new_empty_strided diagonal
    """.split()  # noqa: SIM905
)
# Operations whose result the host needs before it goes on.
WAITS = frozenset(("_local_scalar_dense", "nonzero", "equal", "is_nonzero"))

Operation = tuple[str, tuple[tuple[int, ...], ...]]


class Trace(TorchDispatchMode):
    """Collect the operations inside a ``with`` block, of autograd too.

    Attributes
    ----------
    operations : list of (name, shapes of the results)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and note it."""
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else (result,)
        shapes = tuple(tuple(value.shape) for value in results if isinstance(value, Tensor))
        name = func._schema.name.split("::")[1]  # type: ignore[attr-defined]
        self.operations.append((name, shapes))
        return result

    @property
    def counts(self) -> Counter[str]:
        """How often each operation ran that starts a kernel."""
        return Counter(name for name, _ in self.operations if name not in VIEWS)

    @property
    def kernels(self) -> int:
        """The number of operations that start a kernel."""
        return self.counts.total()

    @property
    def waits(self) -> int:
        """How often the host waited."""
        return sum(name in WAITS for name, _ in self.operations)
