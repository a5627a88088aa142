"""A node's own libfabric in a container: it fits the driver of the network, whose provider no image
can bring.

containers/run --host-fabric FOLDER copies libfabric (and a plugin of NCCL or RCCL, if one lies
there) with what they are linked with into the caches of the job, binds that as /opt/fabric/host,
and puts it first on the search path.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from aam.files.atomic import atomic_file
from containers.lib.errors import raise_if_any

INSIDE = "/opt/fabric/host"
# A folder of libraries, or the prefix of an installation.
PLACES = ("", "lib64", "lib")
WANTED = ("libfabric.so.1", "librccl-net.so", "libnccl-net.so")
# The C and C++ library and the loader are those of the image, which are newer than a node's; the
# libraries of the GPU are those that the image's torch has loaded.
NOT_COPIED = re.compile(
    r"(ld-linux[-\w]*|linux-vdso|libc|libm|libdl|librt|libpthread|libresolv|libutil|libgcc_s|libstdc\+\+"
    r"|lib(amdhip|hsa-runtime|rocm|rocprofiler|cuda|nccl|rccl)[-\w]*)\.so"
)


def find_libraries(folders: list[str], problems: list[str]) -> list[Path]:
    """Return the libraries of `WANTED` in each folder; a folder without any is a problem."""
    found: list[Path] = []
    hint = "`find /opt/cray -name libfabric.so.1` on a node shows where it is"
    for folder in folders:
        paths = (Path(folder, place, name) for place in PLACES for name in WANTED)
        here = [path for path in paths if path.is_file()]
        if not here:
            nothing = f"holds none of {', '.join(WANTED)}, nor do its lib64 and lib"
            problems.append(f"--host-fabric {folder}: {nothing}; {hint}")
        found += here
    return found


def needed_libraries(library: Path, problems: list[str]) -> list[Path]:
    """Return the libraries that a library is linked with, as the loader of this machine finds
    them.
    """
    printed = subprocess.run(["ldd", str(library)], capture_output=True, text=True).stdout
    needed = []
    for name, path in re.findall(r"(?m)^\s*(\S+) => (not found|/\S+)", printed):
        if NOT_COPIED.match(name) or name in WANTED:
            continue
        if path == "not found":
            hint = "which the loader of this node does not find: load the module of libfabric first"
            problems.append(f"--host-fabric: {library} needs {name}, {hint}")
        else:
            needed.append(Path(path))
    return needed


def copy_library(path: Path, folder: Path) -> None:
    """Copy a library unless it is there: several tasks of a node do so at once, and one may have
    loaded it already.
    """
    target = folder / path.name
    if not target.exists() or target.stat().st_size != path.stat().st_size:
        with atomic_file(target) as new:
            shutil.copy(path, new)


def copy_host_fabric(folders: list[str], caches: Path) -> Path:
    """Copy the libraries of a node into the caches of a job and return their folder.

    Those that are wanted lie in it, those that they need in `needed`: an image's own library of
    that name goes first.
    """
    problems: list[str] = []
    libraries = find_libraries(folders, problems)
    needed = [path for library in libraries for path in needed_libraries(library, problems)]
    raise_if_any(problems)
    target = caches / "host-fabric"
    (target / "needed").mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in libraries:
        copy_library(path, target)
    for path in needed:
        copy_library(path, target / "needed")
    return target


def search_path() -> str:
    """Return the LD_LIBRARY_PATH inside: the node's libfabric, the image's plugin and libraries,
    then the node's.
    """
    system = [f"/usr/lib/{machine}-linux-gnu" for machine in ("x86_64", "aarch64")]
    return ":".join([INSIDE, "/opt/fabric/lib", *system, f"{INSIDE}/needed"])
