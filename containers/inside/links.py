"""Make what install scripts of packages would make below a root folder: certificates, and AMD's
names of devices.

The image's own files, copied with the permissions that they have in a checkout, get those of an
installed file. A definition and the layer of a user who may not build one both call it; in a layer
no install script has run.
"""

from __future__ import annotations

import sys
from pathlib import Path

# libdrm has this path built in; torch's wheel for ROCm carries the file elsewhere (pytorch
# #144203).
DEVICE_NAMES = Path("opt/amdgpu/share/libdrm/amdgpu.ids")
WHEEL_DEVICE_NAMES = "opt/venv/lib/python3.*/site-packages/torch/share/libdrm/amdgpu.ids"
CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")


def link_device_names(root: Path) -> None:
    """Link the path that libdrm reads to the file in torch's wheel, where there is one and the path
    is free.
    """
    link = root / DEVICE_NAMES
    names = sorted(root.glob(WHEEL_DEVICE_NAMES))
    if not names or link.exists() or link.is_symlink():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path("/") / names[0].relative_to(root))


def join_certificates(root: Path) -> None:
    """Write the certificates of the package ca-certificates as one file, as its install script
    does.
    """
    file = root / CERTIFICATES
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    if not certificates or file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(path.read_bytes().rstrip(b"\n") + b"\n" for path in certificates))


def make_readable(folder: Path) -> None:
    """Let everybody read a folder and its files: a checkout of a user with umask 077 is closed to
    others.
    """
    for path in (folder, *folder.rglob("*")):
        if path.exists() and not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))


def main(root: Path) -> None:
    """Make what is missing below a root folder."""
    make_readable(root / "opt/aam")
    join_certificates(root)
    link_device_names(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
