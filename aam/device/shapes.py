"""Types of tensors with their shapes, for annotations: checked by jaxtyping where tests load it,
free elsewhere.

Annotations are never evaluated while `aam` runs, so nothing but the tests and the type checker
needs jaxtyping.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Float32, Int64, UInt8
else:

    class _Unchecked:
        def __class_getitem__(cls, shape: Any) -> Any:
            return cls

    Bool = Float = Float32 = Int64 = UInt8 = _Unchecked

__all__ = ["Bool", "Float", "Float32", "Int64", "UInt8"]
