"""An image for users who may not build one: the base, pulled by digest, and a layer with the
environment.

Everything runs as the user. Packages of the definition that the base lacks are downloaded by the
base's own apt and unpacked. The environment is made inside the base, from the same lock and by the
same script as in a definition. Both are packed as one squashfs, which containers/run mounts over
the base.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from containers.lib.definition import packages, section
from containers.lib.engine import Engine, capture, exec_words, run_engine, scratch_folder
from containers.lib.errors import FailedError, InputError
from containers.lib.files import CONTAINERS, ROOT
from containers.lib.plan import Plan
from containers.lib.wheels import copy_sources, wheel_folders

CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
SHELL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Runs in the base: unpacks packages into the folder $1, as of the snapshot $2 or of now; the other
# words name packages. A snapshot is read by https: the certificates are unpacked aside, and what
# the layer gets is of the snapshot's date.
UNPACK_PACKAGES = r"""
set -eu
layer=$1; snapshot=$2; dated=; shift 2
state=$(mktemp -d)
mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$layer/opt/aam"
for name in bin sbin lib lib64; do [ ! -L "/$name" ] || ln -sfn "usr/$name" "$layer/$name"; done
apt() {
    apt-get -q -o Debug::NoLocking=1 -o Dir::State::Lists="$state/lists" -o Dir::Cache="$state/cache" \
        -o Dir::Log="$state" -o Dir::State::extended_states="$state/extended" -o APT::Sandbox::User="$(id -un)" \
        $dated "$@"
}
apt update
if [ -n "$snapshot" ]; then
    cd "$state"
    apt download ca-certificates
    dpkg-deb -x ca-certificates_*.deb certificates
    cat certificates/usr/share/ca-certificates/*/*.crt > all.crt
    cd /
    dated="--snapshot $snapshot -o APT::Update::Error-Mode=any -o Acquire::https::CaInfo=$state/all.crt"
    apt update
fi
apt install -y --no-install-recommends --download-only "$@"
for file in "$state"/cache/archives/*.deb; do
    [ -e "$file" ] || continue
    dpkg-deb --fsys-tarfile "$file" | tar -x -C "$layer" --keep-directory-symlink --no-same-owner
    dpkg-deb --show --showformat='${Package}\t${Version}\t${Architecture}\n' "$file"
done | sort > "$layer/opt/aam/debs.txt"
rm -rf "$state"
"""  # noqa: E501


def mksquashfs_path() -> str:
    """Return the path of the program mksquashfs."""
    program = shutil.which("mksquashfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not program:
        hint = "install squashfs-tools, or load its module"
        raise InputError(f"mksquashfs: not found on PATH or in /usr/sbin; {hint}")
    return program


def make_squashfs(folder: Path, out: Path, options: str) -> None:
    """Pack a folder as a squashfs whose files belong to root, with the options of pins.toml."""
    command = [mksquashfs_path(), str(folder), str(out), "-noappend", "-all-root", "-no-progress"]
    done = subprocess.run([*command, "-quiet", *options.split()], capture_output=True, text=True)
    if done.returncode:
        raise FailedError(f"{out.name}: mksquashfs failed:", *done.stderr.strip().splitlines()[-3:])


def run_in_base(
    engine: Engine, image: Path, command: list[str], binds: list[str], overlay: Path | None = None
) -> str:
    """Run a command in the base, which sees nothing of this machine but the binds; return its
    output.
    """
    command = ["env", f"PATH={SHELL_PATH}", *command]
    words = exec_words(engine, image, command, binds, overlay)
    words.insert(2, "--contain")
    return run_engine(words, "making the layer")


def base_lacks_packages(engine: Engine, image: Path, python: str) -> bool:
    """Return whether the base lacks Python, its headers, its venv, certificates or a compiler for C
    and C++.
    """
    check = f"command -v gcc && command -v g++ && test -s /{CERTIFICATES} && "
    check += f"python{python} -c 'import ensurepip, sysconfig, os; "
    check += 'assert os.path.exists(sysconfig.get_paths()["include"] + "/Python.h")\''
    return capture(exec_words(engine, image, ["sh", "-c", check])).returncode != 0


def get_base(engine: Engine, local: Path | None, values: dict[str, str], out: Path) -> None:
    """Pull the base by digest, or pack a local one; neither needs special rights."""
    if local and local.is_file():
        shutil.copy(local, out)
    elif local:
        run_engine([engine.command, "build", str(out), str(local)], f"packing {local.name}")
    else:
        source = f"docker://{values['BASE']}"
        command = [engine.command, "pull", "--disable-cache", str(out), source]
        run_engine(command, f"pulling {source}")


def add_definition_files(root: Path, definition: Path, values: dict[str, str]) -> None:
    """Write what the definition's %files, %environment and %runscript would."""
    aam = root / "opt" / "aam"
    for name in ("aam", "venv"):
        (root / "opt" / name).mkdir(parents=True, exist_ok=True)
    for path in (CONTAINERS / "inside").glob("*.py"):
        shutil.copy(path, aam / path.name)
    shutil.copy(ROOT / values["LOCK"], aam / "lock.txt")
    for name, part in (("env/95-aam.sh", "environment"), ("runscript", "runscript")):
        script = root / ".singularity.d" / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f"#!/bin/sh\n{section(definition, part)}", encoding="utf-8")
        script.chmod(0o755)


def make_links(root: Path) -> None:
    """Make in a layer what the packages' install scripts would have made: none of them has run."""
    script = CONTAINERS / "inside" / "links.py"
    subprocess.run([sys.executable, "-S", str(script), str(root)], check=True)


def layer_steps(plan: Plan) -> str:
    """Return the commands that make the environment inside the base."""
    python, values = f"python{plan.values['PYTHON']}", plan.values
    steps = (
        f"AAM_COMMIT='{values['REVISION']}' {python} /opt/aam/environment.py /opt/venv "
        f"/opt/aam/lock.txt --index '{values['INDEX']}' --sources /tmp/source --image",
        "/opt/venv/bin/python /opt/aam/sbom.py /opt/aam/lock.txt > /opt/aam/sbom.json",
    )
    return " && ".join(steps)


def unpack_packages(plan: Plan, engine: Engine, base: Path, folder: Path, binds: list[str]) -> str:
    """Unpack the packages of the definition that the base lacks into ``folder/root``, and pack
    them; return what was printed.
    """
    script = ["sh", "-c", UNPACK_PACKAGES, "unpack", "/mnt", plan.values["SNAPSHOT"]]
    script += packages(plan.definition, plan.values)
    log = run_in_base(engine, base, script, [f"{folder}/root:/mnt", *binds])
    make_links(folder / "root")
    make_squashfs(folder / "root", folder / "packages.squashfs", plan.pins.squashfs)
    return log


def build_layer(plan: Plan, engine: Engine, base: Path, out: Path) -> str:
    """Write the base image to `base` and the layer that is mounted over it to `out`; return what
    the programs printed.
    """
    mksquashfs_path()
    get_base(engine, plan.base.local, plan.values, base)
    log = ""
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="layer-") as name:
        folder = Path(name)
        root, temporary = folder / "root", folder / "tmp"
        root.mkdir()
        temporary.mkdir()
        bind_tmp = f"{temporary}:/tmp"
        packages_layer = None
        if base_lacks_packages(engine, base, plan.values["PYTHON"]):
            log += unpack_packages(plan, engine, base, folder, [bind_tmp])
            packages_layer = folder / "packages.squashfs"
        add_definition_files(root, plan.definition, plan.values)
        copy_sources(temporary / "source")
        written = (f"{root}/opt/{name}:/opt/{name}" for name in ("aam", "venv"))
        wheels = (f"{path}:{path}:ro" for path in wheel_folders())
        steps = ["sh", "-euc", layer_steps(plan)]
        log += run_in_base(engine, base, steps, [bind_tmp, *written, *wheels], packages_layer)
        make_links(root)
        make_squashfs(root, out, plan.pins.squashfs)
        check = ["/opt/venv/bin/python", "/opt/aam/selftest.py"]
        return log + run_in_base(engine, base, check, [bind_tmp], out)
