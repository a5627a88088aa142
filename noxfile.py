"""Sessions that need an environment or an image of their own: Pythons, lowest versions, benchmarks, containers.

``nox -l`` lists them. What follows ``--`` goes to the tool that a session calls. Python versions, groups and lower
bounds are read from pyproject.toml; ``TORCH`` and ``TORCH_INDEX`` choose another PyTorch than the lock's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox
from packaging.requirements import Requirement

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
LOCK = "containers/lock/cpu.txt"
MINIMUMS_GB = 8

nox.options.sessions = ["lint", "types", "test"]
nox.options.reuse_venv = "yes"


def runs(program: str, version: str) -> bool:
    """Whether a program is a Python of this version; a shim of pyenv may be on PATH and refuse to run."""
    said = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([program, "-c", said], capture_output=True, text=True)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def interpreter(version: str) -> str | None:
    """A Python of this version that runs: this one, one on PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [sys.executable, f"python{version}", *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    return next((each for each in candidates if runs(each, version)), None)


def locked(version: str) -> bool:
    """Whether the lock was made for this Python."""
    line = next(line for line in (ROOT / LOCK).read_text().splitlines() if line.startswith("# python:"))
    lowest_python, _, highest = line.removeprefix("# python: ").partition(" to ")
    bounds = [tuple(map(int, each.split("."))) for each in (lowest_python, version, highest)]
    return bounds[0] <= bounds[1] <= bounds[2]


def tools(group: str, *names: str) -> list[str]:
    """Requirements called `names` in an optional group of pyproject.toml."""
    listed = PROJECT["project"]["optional-dependencies"][group]
    return [line for line in listed if Requirement(line).name in names]


def lowest(requirements: list[str]) -> list[str]:
    """Pin each requirement that holds here to its lower bound."""
    pins = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate():
            bounds = [part.version for part in requirement.specifier if part.operator == ">="]
            pins.append(f"{requirement.name}=={bounds[0]}")
    return pins


def environment(session: nox.Session, version: str) -> str:
    """Make .nox/aam-VERSION as `make setup` makes .venv; returns its Python. A session without one is skipped."""
    program = interpreter(version)
    if program is None:
        session.skip(f"no Python {version} runs here: install python{version}, or pyenv install {version}")
    torch = os.environ.get("TORCH", "")
    if not torch and not locked(version):
        session.skip(f"{LOCK} is not for Python {version}: TORCH=torch TORCH_INDEX=URL chooses a PyTorch for it")
    venv = ROOT / ".nox" / f"aam-{version}"
    words = ["--torch", torch, "--index", os.environ.get("TORCH_INDEX", "")]
    session.run(program, "containers/inside/environment.py", str(venv), LOCK, "--editable", ".", *words, external=True)
    return str(venv / "bin" / "python")


def here() -> str:
    """The Python that runs nox."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


@nox.session(venv_backend="none")
@nox.parametrize("version", PYTHONS, ids=PYTHONS)
def test(session: nox.Session, version: str) -> None:
    """Run the tests on every supported Python that runs here; ``nox -s "test(3.11)"`` takes one."""
    session.run(environment(session, version), "-m", "pytest", *session.posargs, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format; ``nox -s lint -- --fix`` mends what ruff can."""
    session.install(*tools("lint", "ruff"))
    session.run("ruff", "check", *session.posargs, ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check types and the direction of imports."""
    python = environment(session, here())
    session.run(python, "-m", "mypy", *session.posargs, external=True)
    session.run(str(Path(python).with_name("lint-imports")), external=True)


@nox.session
def minimums(session: nox.Session) -> None:
    """Run the tests on the lowest version of every dependency; needs 8 GB of disk for them."""
    free = shutil.disk_usage(".").free / 1e9
    if free < MINIMUMS_GB:
        session.skip(
            f"{free:.1f} GB of disk are free here, {MINIMUMS_GB} GB are needed: free some, or move the checkout"
        )
    pins = lowest(PROJECT["project"]["dependencies"])
    session.install(*pins, "--editable", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure speed and memory on this machine's device."""
    session.run(environment(session, here()), "-m", "aam", "bench", *session.posargs, external=True)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Check that every link, make target and nox session that a page names is there."""
    python = environment(session, here())
    session.run(python, "-m", "pytest", "tests/containers/test_docs.py", *session.posargs, external=True)


@nox.session
def audit(session: nox.Session) -> None:
    """Ask PyPI's advisories about every locked version; needs a network. Hashes are checked by the tests."""
    session.install("pip-audit>=2.9")
    for lock in sorted(Path("containers/lock").glob("*.txt")):
        session.run("pip-audit", "--disable-pip", "--require-hashes", "--strict", "-r", str(lock), *session.posargs)


@nox.session(venv_backend="none")
def slurm_scripts(session: nox.Session) -> None:
    """Emit all job scripts of a site for a made-up user; ``-- --site generic --output FOLDER``."""
    session.run(sys.executable, "slurm/generate", "examples", *session.posargs, external=True)


@nox.session(venv_backend="none")
def slurm(session: nox.Session) -> None:
    """Run job scripts on a pretended cluster, one in an image: root on Debian 12, 12 minutes, 8 GB of disk."""
    python = environment(session, here())
    session.run(python, "-m", "pytest", "-m", "cluster", "tests/cluster/test_slurm.py", *session.posargs, external=True)


def reach() -> list[str]:
    """What takes a command to a GPU node: nothing where one is here already, or where there is no SLURM."""
    here = Path("/dev/kfd").exists() or "SLURM_JOB_ID" in os.environ or shutil.which("srun") is None
    return [] if here else [sys.executable, "slurm/generate", "reach", "--"]


def container(session: nox.Session, flavour: str) -> None:
    """Build an image through make."""
    session.run("make", f"container-{flavour}", f"PYTHON={sys.executable}", *session.posargs, external=True)


def test_in(session: nox.Session, flavour: str, *before: str) -> None:
    """Run the tests inside an image."""
    session.run(*before, sys.executable, "containers/session.py", flavour, *session.posargs, external=True)


@nox.session(venv_backend="none")
def images(session: nox.Session) -> None:
    """Build, break and check images for real, the slow tests too: root on Debian 12, 10 minutes, 8 GB of disk."""
    python = environment(session, here())
    session.run(
        python, "-m", "pytest", "-m", "cluster", "tests/cluster/test_images.py", *session.posargs, external=True
    )


@nox.session(venv_backend="none")
def container_rocm(session: nox.Session) -> None:
    """Build containers/aam-rocm.sif; what follows -- are make's variables, such as BASE=PATH."""
    container(session, "rocm")


@nox.session(venv_backend="none")
def container_cuda(session: nox.Session) -> None:
    """Build containers/aam-cuda.sif."""
    container(session, "cuda")


@nox.session(venv_backend="none")
def container_cpu(session: nox.Session) -> None:
    """Build containers/aam-cpu.sif."""
    container(session, "cpu")


@nox.session(venv_backend="none")
def test_rocm(session: nox.Session) -> None:
    """Run the tests inside the ROCm image, GPU tests too; ``-- --no-gpu``, ``-- --rocm``, ``-- --bind=PATH``.

    On a login node they run on a GPU node of AAM_SITE (cosmos), reached through srun.
    """
    test_in(session, "rocm", *([] if "--no-gpu" in session.posargs else reach()))


@nox.session(venv_backend="none")
def test_cuda(session: nox.Session) -> None:
    """Run the tests inside the CUDA image with the host's driver; without a GPU: ``-- --no-gpu``."""
    nvidia = [] if "--no-gpu" in session.posargs else ["--nv"]
    session.run(sys.executable, "containers/session.py", "cuda", *nvidia, *session.posargs, external=True)


@nox.session(venv_backend="none")
def test_cpu(session: nox.Session) -> None:
    """Run the tests inside the CPU image."""
    test_in(session, "cpu")
