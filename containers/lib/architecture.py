"""For which machines a local root folder or SIF was made: what differs from this one cannot run in
a build.
"""

from __future__ import annotations

import platform
from pathlib import Path

PROGRAMS = ("bin/sh", "usr/bin/dash", "usr/bin/bash", "usr/bin/python3")
# e_machine of an ELF header, and the code of a SIF's header, for each name that the kernel gives a
# machine.
ELF = {
    3: "i686",
    21: "ppc64",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
}
SIF = {
    "01": "i686",
    "02": "x86_64",
    "03": "armv7l",
    "04": "aarch64",
    "06": "ppc64le",
    "11": "s390x",
    "12": "riscv64",
}
SIF_MAGIC_AT, SIF_CODE_AT = 32, 45


def _inside(root: Path, name: str) -> Path:
    """Return the file of a name in a root folder, whose absolute links start at that folder too."""
    path = root
    parts = name.split("/")
    for _ in range(40):
        if not parts:
            break
        part = parts.pop(0)
        path = path.parent if part == ".." and path != root else path / part.replace("..", ".")
        if path.is_symlink():
            target = str(path.readlink())
            path = root if target.startswith("/") else path.parent
            parts = [each for each in target.split("/") if each] + parts
    return path


def program_machine(path: Path) -> str:
    """Return the machine that a program is for; empty: it is no ELF file."""
    with path.open("rb") as file:
        header = file.read(20)
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return ""
    is_little = header[5] == 1
    code = int.from_bytes(header[18:20], "little" if is_little else "big")
    name = ELF.get(code, f"machine {code} of ELF")
    return "ppc64le" if name == "ppc64" and is_little else name


def machine_of(base: Path) -> str:
    """Return the machine that a root folder or a SIF is for; empty: nothing in it says so."""
    if base.is_file():
        with base.open("rb") as file:
            header = file.read(SIF_CODE_AT + 3)
        if header[SIF_MAGIC_AT : SIF_MAGIC_AT + 9] != b"SIF_MAGIC":
            return ""
        return SIF.get(header[SIF_CODE_AT : SIF_CODE_AT + 2].decode("ascii", "replace"), "")
    programs = (_inside(base, name) for name in PROGRAMS)
    return next(filter(None, (program_machine(path) for path in programs if path.is_file())), "")


def machine_problems(base: Path) -> list[str]:
    """Return why a local base cannot be used on this machine; empty: it can, or nothing in it says
    so.
    """
    here, there = platform.machine(), machine_of(base)
    if there in ("", here):
        return []
    remedy = f"name a base for {here}, or build on a machine that is {there}"
    return [f"BASE={base}: is for {there}, this machine is {here}, which cannot run it; {remedy}"]
