"""A real engine, a real base image and a checkout for the tests. Needs root on Debian 12; see .ci/run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from containers.lib.image_tests import copy_sources

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OFFLINE = str(ROOT / "tests" / "offline")
GUEST = "aam-guest"

Done = subprocess.CompletedProcess[str]


def environment(**variables: str) -> dict[str, str]:
    """Return this environment without the module that blocks the network: these tests install packages."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != OFFLINE]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    return {**inherited, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {}), **variables}


@pytest.fixture(scope="session")
def workshop() -> Iterator[Path]:
    """A folder on disk for images, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="aam-images-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shell(workshop: Path) -> Callable[..., Done]:
    """Runs a command with scratch space in the workshop; a failure shows its output."""

    def run(*words: object, cwd: Path = workshop, status: int | None = 0, **variables: str) -> Done:
        inherited = environment(AAM_SCRATCH=str(workshop / "scratch"), **variables)
        done = subprocess.run(list(map(str, words)), cwd=cwd, env=inherited, capture_output=True, text=True)
        assert status is None or done.returncode == status, done.stdout[-3000:] + done.stderr[-6000:]
        return done

    return run


@pytest.fixture(scope="session")
def apptainer(shell: Callable[..., Done]) -> str:
    """Apptainer, installed if it is missing."""
    shell(HERE / "install-apptainer")
    return "apptainer"


@pytest.fixture(scope="session")
def base(workshop: Path, shell: Callable[..., Done], apptainer: str) -> Path:
    """A Debian 12 root folder."""
    shell(HERE / "make-base", workshop / "bookworm")
    return workshop / "bookworm"


def check_out(folder: Path, shell: Callable[..., Done]) -> Path:
    """Make a repository with these sources as its only commit."""
    folder.mkdir()
    copy_sources(folder)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "sources"]):
        shell("git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words, cwd=folder)
    return folder


@pytest.fixture(scope="session")
def checkout(workshop: Path, shell: Callable[..., Done]) -> Path:
    """A clean checkout."""
    return check_out(workshop / "checkout", shell)


@pytest.fixture(scope="session")
def make(shell: Callable[..., Done], checkout: Path) -> Callable[..., Done]:
    """Runs make in the checkout with this Python."""
    return lambda *words, **variables: shell("make", f"PYTHON={sys.executable}", *words, cwd=checkout, **variables)


@pytest.fixture(scope="session")
def image(make: Callable[..., Done], checkout: Path, base: Path) -> Path:
    """`make container-cpu` from a local base root folder."""
    make("container-cpu", f"BASE={base}")
    return checkout / "containers" / "aam-cpu.sif"
