"""The way to an image where a user may not build one: the base, pulled by digest, and an environment laid over it.

Everything runs as the user. What the base lacks of a definition's packages is downloaded by its own apt and
unpacked beside it; the environment is made inside the base from the same lock by the same script as in a
definition; both are packed as one squashfs, which containers/run lays over the base.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from parts.engine import Engine, call, scratch
from parts.pins import Pins
from parts.wheels import wheel_folders, wheel_path
from parts.whole import CONTAINERS, ROOT, FailedError, InputError

# Where the base image and the layer are put.
Files = tuple[Path, Path]

SHELL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Runs in the base; $1 is where packages are unpacked, the other words are their names.
FETCH = r"""
set -eu
layer=$1; shift
state=$(mktemp -d)
mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$layer/opt/aam"
for name in bin sbin lib lib64; do [ ! -L "/$name" ] || ln -sfn "usr/$name" "$layer/$name"; done
apt() {
    apt-get -q -o Debug::NoLocking=1 -o Dir::State::Lists="$state/lists" -o Dir::Cache="$state/cache" \
        -o Dir::Log="$state" -o Dir::State::extended_states="$state/extended" -o APT::Sandbox::User="$(id -un)" "$@"
}
apt update
apt install -y --no-install-recommends --download-only "$@"
for file in "$state"/cache/archives/*.deb; do
    [ -e "$file" ] || continue
    dpkg-deb --fsys-tarfile "$file" | tar -x -C "$layer" --keep-directory-symlink --no-same-owner
    dpkg-deb --show --showformat='${Package}\t${Version}\t${Architecture}\n' "$file"
done | sort > "$layer/opt/aam/debs.txt"
rm -rf "$state"
"""


def section(definition: Path, name: str) -> str:
    """The lines of one section of a definition."""
    found = re.search(rf"(?ms)^%{name}\n(.*?)(?=^%|\Z)", definition.read_text(encoding="utf-8"))
    if not found:
        raise InputError(f"{definition}: has no section %{name}")
    return found[1]


def packages(definition: Path, python: str) -> list[str]:
    """The packages that a definition installs."""
    post = section(definition, "post").replace("\\\n", " ").replace("{{ PYTHON }}", python)
    return str(re.findall(r"apt-get install .*--no-install-recommends (.*)", post)[0]).split()


def packer() -> str:
    """The program that makes a squashfs."""
    found = shutil.which("mksquashfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not found:
        raise InputError("mksquashfs: not found on PATH or in /usr/sbin; install squashfs-tools, or load its module")
    return found


def squash(folder: Path, out: Path, how: str) -> None:
    """Pack a folder as a squashfs whose files belong to root, in the way that pins.toml says."""
    command = [packer(), str(folder), str(out), "-noappend", "-all-root", "-no-progress", "-quiet", *how.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FailedError(f"{out.name}: mksquashfs failed:", *done.stderr.strip().splitlines()[-3:])


def enter(engine: Engine, image: Path, command: list[str], binds: list[str], overlay: Path | None = None) -> None:
    """Run a command in the base with nothing of this machine but what is bound."""
    words = [engine.command, "exec", "--cleanenv", "--contain", "--no-home", "--pwd", "/"]
    words += ["--overlay", f"{overlay}:ro"] if overlay else []
    words += [word for bind in binds for word in ("--bind", bind)]
    call([*words, str(image), "env", f"PATH={SHELL_PATH}", *command], "making the layer")


def lacking(engine: Engine, image: Path, python: str) -> bool:
    """Whether the base lacks Python, its headers, its venv or a C compiler."""
    check = f"command -v gcc && python{python} -c 'import ensurepip, sysconfig, os; "
    check += 'assert os.path.exists(sysconfig.get_paths()["include"] + "/Python.h")\''
    command = [engine.command, "exec", "--cleanenv", "--no-home", "--pwd", "/", str(image), "sh", "-c", check]
    return subprocess.run(command, capture_output=True).returncode != 0


def get_base(engine: Engine, local: Path | None, values: dict[str, str], out: Path) -> None:
    """Pull the base by digest, or pack a local one; neither needs rights."""
    if local and local.is_file():
        shutil.copy(local, out)
    elif local:
        call([engine.command, "build", str(out), str(local)], f"packing {local.name}")
    else:
        source = f"docker://{values['BASE']}@{values['DIGEST']}"
        call([engine.command, "pull", "--disable-cache", str(out), source], f"pulling {source}")


def furnish(root: Path, definition: Path, values: dict[str, str]) -> Path:
    """Put into the layer what a definition's %files, %environment and %runscript would; returns /opt/aam."""
    aam = root / "opt" / "aam"
    (root / "opt" / "venv").mkdir(parents=True)
    aam.mkdir(parents=True, exist_ok=True)
    for name in ("environment.py", "sbom.py", "selftest.py"):
        shutil.copy(CONTAINERS / "inside" / name, aam / name)
    shutil.copy(ROOT / values["LOCK"], aam / "lock.txt")
    for name, part in (("env/95-aam.sh", "environment"), ("runscript", "runscript")):
        script = root / ".singularity.d" / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f"#!/bin/sh\n{section(definition, part)}", encoding="utf-8")
        script.chmod(0o755)
    return aam


def build(
    pins: Pins, engine: Engine, definition: Path, local: Path | None, values: dict[str, str], files: Files
) -> None:
    """Get the base image and make the layer that lies over it."""
    packer()
    base, out = files
    get_base(engine, local, values, base)
    python = values["PYTHON"]
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="layer-") as name:
        root, fetched, temporary = Path(name) / "root", None, Path(name) / "tmp"
        root.mkdir()
        temporary.mkdir()
        work = f"{temporary}:/tmp"
        if lacking(engine, base, python):
            enter(
                engine,
                base,
                ["sh", "-c", FETCH, "fetch", "/mnt", *packages(definition, python)],
                [f"{root}:/mnt", work],
            )
            fetched = Path(name) / "packages.squashfs"
            squash(root, fetched, pins.squashfs)
        aam = furnish(root, definition, values)
        shutil.copy(wheel_path(), temporary)
        binds = [
            work,
            f"{aam}:/opt/aam",
            f"{root}/opt/venv:/opt/venv",
            *(f"{each}:{each}:ro" for each in wheel_folders()),
        ]
        make = f"python{python} /opt/aam/environment.py /opt/venv /opt/aam/lock.txt --index '{values['INDEX']}'"
        make += f" --wheel /tmp/{wheel_path().name} --no-cache"
        make += " && /opt/venv/bin/python /opt/aam/sbom.py /opt/aam/lock.txt > /opt/aam/sbom.json"
        enter(engine, base, ["sh", "-euc", make], binds, fetched)
        squash(root, out, pins.squashfs)
        enter(engine, base, ["/opt/venv/bin/python", "/opt/aam/selftest.py"], [work], out)
