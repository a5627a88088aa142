"""`make pin`: ask the registry, through skopeo, for the digest of each base image and record it in
pins.toml.
"""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime

from containers.lib.errors import FailedError, InputError
from containers.lib.pins import DIGEST, read_pins, record

SKOPEO = ("skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}")


def registry_digest(image: str) -> str:
    """Return the digest that the registry has now for an image such as
    ``docker.io/library/ubuntu:24.04``.

    Raises
    ------
    InputError
        skopeo is not installed.
    FailedError
        The registry gave no digest.
    """
    if shutil.which("skopeo") is None:
        hint = "or write the digest that `crane digest` shows into containers/pins.toml"
        raise InputError(f"make pin: skopeo not found on PATH; install the package skopeo, {hint}")
    done = subprocess.run([*SKOPEO, f"docker://{image}"], capture_output=True, text=True)
    digest = done.stdout.strip()
    if not DIGEST.fullmatch(digest):
        reason = done.stderr.strip()[-300:] or f"skopeo printed {digest!r}"
        hint = "  make pin needs a network; nothing was changed"
        raise FailedError(f"{image}: the registry gave no digest: {reason}", hint)
    return digest


def pin_all(flavours: tuple[str, ...]) -> None:
    """Record the current digest of the base image of each flavour, and now as the date of its
    packages.
    """
    now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    digests: dict[str, str] = {}
    for flavour in flavours:
        pins = read_pins(flavour)
        if pins.base not in digests:
            digests[pins.base] = registry_digest(pins.base)
        digest = digests[pins.base]
        if pins.digest == digest:
            print(f"{flavour}: {pins.base} is {digest}, as recorded")
        else:
            record(flavour, "digest", digest)
            # Packages that are older than the base's own could not be installed with them.
            record(flavour, "snapshot", now)
            print(f"{flavour}: {pins.base} is {digest}, recorded in containers/pins.toml")
