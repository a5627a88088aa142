"""An image of a release, pulled instead of built."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from aam.files.atomic import file_digest
from containers.lib.engine import Engine, run_engine
from containers.lib.errors import FailedError
from containers.lib.pins import Pins
from containers.lib.plan import Request
from containers.lib.sidecar import run_in_image

REFERENCE = re.compile(r"[\w.:/-]+@sha256:[0-9a-f]{64}")
COMMIT = "cat /opt/venv/lib/python3*/site-packages/aam/bundled/commit"


def is_pulled(request: Request, pins: Pins) -> bool:
    """Return whether a released image stands for a request: nothing of it differs from the pins."""
    own = (request.base, request.digest, request.python, request.definition, request.fabric)
    differs = any((*own, request.snapshot)) or request.route != "auto"
    return bool(pins.released) and request.pull != "0" and not differs


def pull(engine: Engine, pins: Pins, image: Path) -> str:
    """Pull the SIF of a release by digest and return what the engine printed.

    Raises
    ------
    FailedError
        `released` is no reference with a digest, or the image was made from another lock.
    """
    build = "PULL=0 builds the image"
    if not REFERENCE.fullmatch(pins.released):
        expected = "expected NAME@sha256:DIGEST"
        raise FailedError(f"released = {pins.released!r} in pins.toml: {expected}; {build}")
    source = f"oras://{pins.released}"
    log = run_engine([engine.command, "pull", "--force", str(image), source], f"pulling {source}")
    lock = run_in_image(engine, image, None, ["cat", "/opt/aam/lock.txt"])
    if hashlib.sha256(lock.encode()).hexdigest() != file_digest(pins.lock):
        raise FailedError(f"{pins.released}: was made from another {pins.lock.name}; {build}")
    return log


def commit_inside(engine: Engine, image: Path) -> str:
    """Return the commit of the aam in an image."""
    return run_in_image(engine, image, None, ["sh", "-c", COMMIT]).strip()
