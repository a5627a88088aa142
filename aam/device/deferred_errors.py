"""A file whose write errors are raised when it is closed, for libraries that a failing write would crash."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DeferredErrorFile(io.FileIO):
    """A file to write for HDF5 and the like: after an error it writes nothing more, and `close` raises the error."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self.error: OSError | None = None

    def _attempt(self, change: Callable[[Any], int], argument: Any) -> int | None:
        """Return what `change` returns, or None once a change has failed."""
        if self.error is None:
            try:
                return change(argument)
            except OSError as error:
                self.error = error
        return None

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`, or keep the error; the length of `data` is returned in both cases."""
        view = memoryview(data).cast("B")
        done: int | None = 0
        while done is not None and done < len(view):
            written = self._attempt(super().write, view[done:])
            done = None if written is None else done + written
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Change the size, or keep the error; the new size is returned in both cases."""
        size = self.tell() if size is None else size
        self._attempt(super().truncate, size)
        return size

    def close(self) -> None:
        """Close the file, then raise the first error of a write.

        Raises
        ------
        OSError
            A write failed.
        """
        super().close()
        error, self.error = self.error, None
        if error is not None:
            raise error
