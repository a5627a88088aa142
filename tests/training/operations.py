"""The operations of a step, and how often the host waits in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that start no kernel: views, memory that is not filled, and numbers of the host.
VIEWS = frozenset(
    """
    view _unsafe_view t transpose permute unsqueeze squeeze expand slice select split unbind detach
    alias as_strided split_with_sizes _reshape_alias empty empty_like new_empty unflatten lift_fresh
    empty_strided new_empty_strided diagonal scalar_tensor promote_types _record_function_enter_new
    _record_function_exit
    """.split()  # noqa: SIM905
)
# Operations whose result the host needs before it goes on, and tensors made of the host's numbers,
# whose copy to a device cannot be captured.
WAITS = frozenset(
    ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "lift_fresh")
)

Operation = tuple[str, tuple[tuple[int, ...], ...]]


class Trace(TorchDispatchMode):
    """Collect the operations inside a ``with`` block, of autograd too.

    Attributes
    ----------
    operations : list of (name, shapes of the results)
        Without those that start no kernel.
    waits : int
        How often the host waited.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.waits = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and note it."""
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else (result,)
        shapes = tuple(tuple(value.shape) for value in results if isinstance(value, Tensor))
        name = func._schema.name.split("::")[1]  # type: ignore[attr-defined]
        if name not in VIEWS:
            self.operations.append((name, shapes))
        indices = args[1] if name.startswith("index") and isinstance(args[1], (list, tuple)) else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        self.waits += by_mask or name in WAITS
        return result
