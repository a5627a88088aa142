"""Small programs of the shell that stand in for those of a machine, and what programs print."""

from __future__ import annotations

from pathlib import Path


def write_program(path: Path, text: str) -> Path:
    """Write a program of `text`, lines of the shell unless the first names another, and return its
    path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def absent(text: str, *parts: str) -> list[str]:
    """Return the parts that a text does not contain."""
    return [part for part in parts if part not in text]
