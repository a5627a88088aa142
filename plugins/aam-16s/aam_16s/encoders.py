"""The encoders that this package registers in the entry point group ``aam.encoders``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aam_16s.reference import ReferenceTree

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True)
class Encoder:
    """The folder of a saved model whose reference is a `ReferenceTree`."""

    folder: Path

    @staticmethod
    def read_reference(arrays: Mapping[str, Any]) -> ReferenceTree:
        """Rebuild the reference tree of a saved model from its arrays."""
        # Imported here: listing the encoders must not import torch.
        from aam_16s.reference import ReferenceTree

        return ReferenceTree.from_arrays(arrays)


V4 = Encoder(MODELS / "16s-v4")
