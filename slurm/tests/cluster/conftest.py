"""A real engine, a real base image and a checkout for the tests. Needs root on Debian 12; see
.ci/run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from containers.lib.image_tests import copy_sources
from tests.programs import run_program

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
OFFLINE = str(ROOT / "tests" / "offline")
GUEST = "aam-guest"

Done = subprocess.CompletedProcess[str]


def environment(**variables: str) -> dict[str, str]:
    """Return this environment as users have it: these tests install packages, and their jobs choose
    their threads.
    """
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = os.pathsep.join(path for path in paths if path not in ("", OFFLINE))
    own = ("PYTEST_", "PYTHONPATH", "OMP_NUM_", "MKL_NUM_", "OPENBLAS_NUM_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**inherited, **({"PYTHONPATH": kept} if kept else {}), **variables}


@pytest.fixture(scope="session")
def shared(testrun_uid: str, worker_id: str) -> Iterator[Path]:
    """A folder on disk for what all workers of these tests use; the last of them removes it."""
    folder = Path(f"/var/tmp/aam-images-{testrun_uid[:8]}")
    own = folder / "workers" / worker_id
    own.parent.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    own.touch()
    yield folder
    own.unlink()
    if not list(own.parent.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def once(shared: Path) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Lets one worker at a time make what all use, or install packages."""

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        with (shared / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return alone


@pytest.fixture(scope="session")
def workshop(shared: Path, worker_id: str) -> Path:
    """A folder on disk for what this worker makes."""
    folder = shared / worker_id
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def shell(workshop: Path) -> Callable[..., Done]:
    """Runs a command with scratch space in the workshop; a failure shows its output."""

    def run(*words: object, cwd: Path = workshop, status: int | None = 0, **variables: str) -> Done:
        inherited = environment(AAM_SCRATCH=str(workshop / "scratch"), **variables)
        return run_program(*words, cwd=cwd, env=inherited, status=status)

    return run


@pytest.fixture(scope="session")
def apptainer(shell: Callable[..., Done], once: Callable) -> str:
    """Apptainer, installed if it is missing."""
    with once():
        shell(HERE / "install-apptainer")
    return "apptainer"


@pytest.fixture(scope="session")
def base(shared: Path, shell: Callable[..., Done], apptainer: str, once: Callable) -> Path:
    """A Debian 12 root folder: that of .ci/run, or one made by the first worker that needs it."""
    if "AAM_CI_BASE" in os.environ:
        return Path(os.environ["AAM_CI_BASE"])
    with once():
        shell(HERE / "make-base", shared / "bookworm")
    return shared / "bookworm"


def check_out(folder: Path, shell: Callable[..., Done]) -> Path:
    """Clone this repository with the changes that are not committed."""
    shell("git", "clone", "--quiet", "--no-hardlinks", ROOT, folder, cwd=ROOT)
    copy_sources(folder)
    return folder


@pytest.fixture(scope="session")
def checkout(shared: Path) -> Path:
    """A clone, which `image` makes."""
    return shared / "checkout"


@pytest.fixture(scope="session")
def make(shell: Callable[..., Done], checkout: Path) -> Callable[..., Done]:
    """Runs make in the checkout with this Python."""
    return lambda *words, **variables: shell(
        "make", f"PYTHON={sys.executable}", *words, cwd=checkout, **variables
    )


@pytest.fixture(scope="session")
def image(make: Callable[..., Done], shell: Callable, checkout: Path, base: Path, once) -> Path:
    """The image of .ci/run in the checkout, or one that the first worker builds from the base."""
    built = checkout / "containers" / "aam-cpu.sif"
    with once():
        if not built.exists():
            check_out(checkout, shell)
            ready = Path(os.environ.get("AAM_CI_IMAGE", "none"))
            for path in ready.parent.glob(f"{ready.name}*") if ready.is_file() else ():
                shutil.copy(path, built.parent)
            make("container-cpu", f"BASE={base}")
    return built
