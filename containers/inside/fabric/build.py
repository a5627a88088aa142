"""Build libfabric and the plugin with which NCCL and RCCL use it, from the archives next to this
file.

build.py PREFIX [ENVIRONMENT]: `make container-rocm FABRIC=1` puts archives and sources.json here;
without them nothing is done. The plugin is built for the GPUs of torch in ENVIRONMENT (/opt/venv),
from the headers and the library that its wheels bring: those of HIP are Triton's, those of CUDA the
runtime's. Without a GPU runtime only libfabric is built.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = "lib/python3*/site-packages"
# Kind of GPU: folder of its headers and its library below site-packages, and the options of the
# plugin's configure.
GPUS = {
    "rocm": ("triton/backends/amd/include", "torch/lib/libamdhip64.so", []),
    "cuda": (
        "nvidia/cuda_runtime/include",
        "nvidia/cuda_runtime/lib/libcudart.so.12",
        ["--enable-cudart-dynamic"],
    ),
}
# The providers that every machine has. That of Slingshot (cxi) belongs to the driver of a node: the
# node's own libfabric stands before this one (containers/run --host-fabric).
LIBFABRIC = ["--enable-only", "--enable-tcp", "--enable-shm", "--enable-rxm", "--enable-rxd"]
PLUGIN = ["--without-mpi", "--disable-tests"]
# RCCL looks for the first name, NCCL for the second.
NAMES = ("librccl-net.so", "libnccl-net.so")


def run(*words: object, cwd: Path) -> None:
    """Run a step of a build; a failure ends this program."""
    command = list(map(str, words))
    print("fabric:", *command, flush=True)
    if subprocess.run(command, cwd=cwd).returncode:
        hint = "without FABRIC the image is built without it"
        sys.exit(f"fabric: {command[0]} failed in {cwd.name}, see above; {hint}")


def install(archive: Path, prefix: Path, options: list[str]) -> None:
    """Unpack an archive, configure, make and install it."""
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(archive) as file:
            # Its SHA-256 is pinned. Python before 3.11.4 (Debian 12) knows no filter, later ones
            # ask for one.
            file.extractall(name, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        (source,) = Path(name).iterdir()
        places = (f"--prefix={prefix}", f"--libdir={prefix}/lib")
        run("./configure", *places, "--disable-static", *options, cwd=source)
        run("make", "-s", f"-j{os.cpu_count() or 1}", cwd=source)
        run("make", "-s", "install", cwd=source)


def gpu_options(site: Path, prefix: Path) -> list[str]:
    """Lay out the GPU's headers and library as configure expects them; return its options, none
    without a GPU.

    `site` is the folder site-packages of the torch that the plugin is for.
    """
    for kind, (include, library, options) in GPUS.items():
        if not (site / library).exists():
            continue
        if not (site / include).is_dir():
            problem = "the plugin cannot be built from this lock"
            sys.exit(f"fabric: {site / include} is missing: {problem}")
        folder = prefix / "gpu"
        (folder / "lib").mkdir(parents=True, exist_ok=True)
        (folder / "include").symlink_to(site / include)
        name = Path(library).name.partition(".so")[0] + ".so"
        for place in (folder / "lib", prefix / "lib"):
            (place / name).symlink_to(site / library)
        return [f"--with-{kind}={folder}", *options]
    return []


def add_names(folder: Path) -> None:
    """Give the plugin both names under which it is looked for."""
    built = [folder / name for name in NAMES if (folder / name).exists()]
    if not built:
        sys.exit(f"fabric: the plugin was built, but {folder} has none of {', '.join(NAMES)}")
    for name in NAMES:
        if not (folder / name).exists():
            (folder / name).symlink_to(built[0].name)


def main(prefix: Path, environment: Path = Path("/opt/venv")) -> None:
    """Build the archives next to this file.

    An archive that differs from sources.json ends the program before anything is built.
    """
    prefix.mkdir(parents=True, exist_ok=True)
    # The node's own libraries are bound here.
    (prefix / "host").mkdir(exist_ok=True)
    listed = HERE / "sources.json"
    if not listed.exists():
        return
    sources = json.loads(listed.read_text(encoding="utf-8"))
    for source in sources:
        digest = hashlib.sha256((HERE / source["file"]).read_bytes()).hexdigest()
        if digest != source["sha256"]:
            wrong = f"SHA-256 {digest}, expected {source['sha256']}"
            sys.exit(f"fabric: {source['file']} has {wrong}: nothing is built")
    libfabric, plugin = (HERE / source["file"] for source in sources)
    install(libfabric, prefix, LIBFABRIC)
    gpu = gpu_options(next(environment.glob(PACKAGES)), prefix)
    if gpu:
        install(plugin, prefix, [f"--with-libfabric={prefix}", *gpu, *PLUGIN])
        add_names(prefix / "lib")
    else:
        sources = sources[:1]
        print("fabric: torch has no GPU runtime here: libfabric without the plugin", flush=True)
    for folder in ("include", "share", "lib/pkgconfig"):
        shutil.rmtree(prefix / folder, ignore_errors=True)
    for path in (prefix / "lib").glob("*.la"):
        path.unlink()
    (prefix / "sources.json").write_text(json.dumps(sources, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
