"""Sessions that need an environment or an image of their own: Python versions, lowest versions,
containers, SLURM.

``nox -l`` lists them. Words after ``--`` go to the tool that a session calls. Python versions,
groups and lower bounds are read from pyproject.toml. The variables TORCH and TORCH_INDEX choose
another PyTorch than the lock's.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nox
from packaging.requirements import Requirement

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
LOCK = "containers/lock/cpu.txt"
# The Python that runs nox.
CURRENT = f"{sys.version_info[0]}.{sys.version_info[1]}"
MINIMUMS_GB = 8

nox.options.sessions = ["lint", "types", "test"]
nox.options.reuse_venv = "yes"


# --- environments ------------------------------------------------------------------------------


def is_python(program: str, version: str) -> bool:
    """Return whether a program is a Python of this version; a shim of pyenv may be on PATH and not
    run.
    """
    show_version = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([program, "-c", show_version], capture_output=True, text=True)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def find_python(version: str) -> str | None:
    """Return a Python of this version: the one that runs nox, one on PATH, or one of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    programs = [
        sys.executable,
        f"python{version}",
        *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"))),
    ]
    return next((program for program in programs if is_python(program, version)), None)


def is_locked(version: str) -> bool:
    """Return whether the lock is for this Python."""
    line = next(
        line for line in (ROOT / LOCK).read_text().splitlines() if line.startswith("# python:")
    )
    first, _, last = line.removeprefix("# python: ").partition(" to ")
    low, this, high = (tuple(map(int, text.split("."))) for text in (first, version, last))
    return low <= this <= high


def environment(session: nox.Session, version: str = CURRENT) -> str:
    """Make .nox/aam-VERSION as `make setup` makes .venv, and return its Python; skip the session
    without a Python.
    """
    program = find_python(version)
    if program is None:
        session.skip(
            f"no Python {version} runs here: install python{version}, or pyenv install {version}"
        )
    torch = os.environ.get("TORCH", "")
    if not torch and not is_locked(version):
        session.skip(
            f"{LOCK} is not for Python {version}: TORCH=torch TORCH_INDEX=URL chooses a PyTorch "
            "for it"
        )
    venv = ROOT / ".nox" / f"aam-{version}"
    words = ["--torch", torch, "--index", os.environ.get("TORCH_INDEX", "")]
    session.run(
        program,
        "containers/inside/environment.py",
        str(venv),
        LOCK,
        "--editable",
        ".",
        "plugins/aam-16s",
        *words,
        external=True,
    )
    return str(venv / "bin" / "python")


def run_pytest(session: nox.Session, *words: str, version: str = CURRENT) -> None:
    """Run pytest in an environment of this Python."""
    session.run(
        environment(session, version), "-m", "pytest", *words, *session.posargs, external=True
    )


# --- tests and checks --------------------------------------------------------------------------


@nox.session(venv_backend="none")
@nox.parametrize("version", PYTHONS, ids=PYTHONS)
def test(session: nox.Session, version: str) -> None:
    """Run the tests on every supported Python that runs here; ``nox -s "test(3.11)"`` takes one."""
    run_pytest(session, version=version)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format; ``nox -s lint -- --fix`` corrects what ruff can."""
    groups = PROJECT["project"]["optional-dependencies"]
    session.install(*(line for line in groups["lint"] if Requirement(line).name == "ruff"))
    session.run("ruff", "check", *session.posargs, ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check types and the direction of imports."""
    python = environment(session)
    session.run(python, "-m", "mypy", *session.posargs, external=True)
    session.run(str(Path(python).with_name("lint-imports")), external=True)


def lowest_versions(*groups: str) -> list[str]:
    """Return the lower bounds of the dependencies and of some groups, as pins."""
    project = PROJECT["project"]
    lines = [*project["dependencies"]]
    lines += (line for group in groups for line in project["optional-dependencies"][group])
    pins = []
    python = {"python_version": PYTHONS[0]}
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate(python):
            (bound,) = (each for each in requirement.specifier if each.operator == ">=")
            pins.append(f"{requirement.name}=={bound.version}")
    return pins


@nox.session(python=PYTHONS[0])
def minimums(session: nox.Session) -> None:
    """Run the tests with the lowest Python and the lowest versions; needs 8 GB of disk."""
    free_gb = shutil.disk_usage(".").free / 1e9
    if free_gb < MINIMUMS_GB:
        session.skip(f"{free_gb:.1f} GB of disk are free, {MINIMUMS_GB} GB are needed")
    pins = lowest_versions("test")
    session.install(*pins, "--editable", ".", "--editable", "plugins/aam-16s")
    # Programs of images and jobs need Python 3.11.
    left_out = (f"--ignore={name}" for name in ("containers", "slurm", "tests/docs"))
    # The checks of estimators of scikit-learn 1.6 cannot be imported without it.
    variables = {"SCIPY_ARRAY_API": "1"}
    session.run("python", "-m", "pytest", *left_out, *session.posargs, env=variables)


@nox.session
def qiime2(session: nox.Session) -> None:
    """Run the tests of plugins/q2-aam in the framework of QIIME 2; ``-- FOLDER`` holds its wheels.

    What aam needs is taken from the environment that runs nox where aam is installed, such as
    .venv.
    """
    wheels = sorted(map(str, Path(session.posargs[0] if session.posargs else ".").glob("*.whl")))
    if not wheels:
        session.skip("no wheels of qiime2 and q2-types: nox -s qiime2 -- FOLDER")
    python = sys.executable if importlib.util.find_spec("aam") else environment(session)
    (purelib,) = Path(python).parents[1].glob("lib/python*/site-packages")
    (site_packages,) = Path(session.virtualenv.location).glob("lib/python*/site-packages")
    (site_packages / "aam.pth").write_text(
        f"{purelib}\n{ROOT}\n{ROOT / 'plugins' / 'q2-aam'}\n", encoding="utf-8"
    )
    session.install(
        "rachis",
        "decorator",
        "ijson",
        "tqdm",
        "pyhmmer",
        "scikit-bio",
        "pandas<3",
        "setuptools<81",
        "pytest",
    )
    session.install("--no-deps", *wheels)
    session.chdir("plugins/q2-aam")
    session.run("python", "-m", "pytest", *session.posargs[1:])


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Check that every link, make target and nox session that a page names exists."""
    run_pytest(session, "-m", "not slow", "tests/docs/test_pages.py")


@nox.session
def audit(session: nox.Session) -> None:
    """Check every locked version against the security advisories of the package index."""
    session.install("pip-audit>=2.9")
    for lock in sorted(Path("containers/lock").glob("*.txt")):
        session.run(
            "pip-audit",
            "--disable-pip",
            "--require-hashes",
            "--strict",
            "-r",
            str(lock),
            *session.posargs,
        )


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Compare the speed of aam with other programs on the device of this machine."""
    session.run(environment(session), "-m", "benchmarks", "speed", *session.posargs, external=True)


# --- kernels of a GPU that is not there ----------------------------------------------------------

KERNELS = "tests/kernels"
# The PyTorch of the ROCm image, its Triton, and that of PyTorch 2.5 with what it says of
# `int1.py` (tickets COS-8.1 and COS-9.2).
KERNEL_TORCH, TRITON = "torch==2.7.1", "triton==3.3.1"
FAULTY_TRITON, FAULT = "triton==3.1.0", "<[1, 2], int1> but is re-assigned to <[1, 2], int8>"
LINKERS = ("ld.lld-19", "/opt/rocm/llvm/bin/ld.lld")


def linker_of_kernels(session: nox.Session) -> dict[str, str]:
    """Return the variable that names LLVM's linker, which root on Debian installs (28 MB)."""
    places = [os.environ.get("TRITON_HIP_LLD_PATH", ""), *LINKERS]
    found = next((path for place in places if (path := shutil.which(place))), None)
    if found is None and shutil.which("apt-get") and os.getuid() == 0:
        command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "lld-19"]
        session.run("apt-get", "update", "-qq", external=True)
        session.run(*command, external=True, env={"DEBIAN_FRONTEND": "noninteractive"})
        found = shutil.which(LINKERS[0])
    if found is None:
        session.error(
            "no linker for kernels: install LLVM's ld.lld 19 (apt-get install lld-19), or let "
            "TRITON_HIP_LLD_PATH name one"
        )
    return {"TRITON_HIP_LLD_PATH": found}


def check_control(session: nox.Session, linker: dict[str, str]) -> None:
    """Check that the Triton of PyTorch 2.5 fails on `int1.py` with the message of the tickets."""
    with tempfile.TemporaryDirectory() as folder:
        session.install("--no-deps", "--target", folder, FAULTY_TRITON, "filelock")
        command = ["python", f"{KERNELS}/build.py", f"{KERNELS}/int1.py"]
        variables = {**linker, "PYTHONPATH": folder}
        printed = session.run(*command, env=variables, success_codes=[1], silent=True)
    if FAULT not in str(printed):
        session.error(f"{FAULTY_TRITON} does not say {FAULT!r}:\n{printed}")


@nox.session
def kernels(session: nox.Session) -> None:
    """Compile the kernels of the default network's pretraining step for gfx942, without a GPU.

    ``-- --arch gfx90a`` takes another architecture. It downloads 0.4 GB.
    """
    linker = linker_of_kernels(session)
    check_control(session, linker)
    session.install(TRITON)
    for module in ("int1", "pretraining"):
        command = ["python", f"{KERNELS}/build.py", f"{KERNELS}/{module}.py"]
        session.run(*command, *session.posargs, env=linker)


@nox.session
def kernels_all(session: nox.Session) -> None:
    """Write and compile the kernels of two tasks, networks and architectures: half an hour, 6 GB.

    ``-- --write`` keeps the kernels that `kernels` compiles, and records the numbers of the pages.
    """
    linker = linker_of_kernels(session)
    session.install(KERNEL_TORCH, "--editable", ".")
    folder = session.create_tmp()
    command = ["python", f"{KERNELS}/all_steps.py", folder]
    session.run(*command, *session.posargs, env=linker)
    if "--write" in session.posargs:
        session.run("python", "docs/pages.py")


# --- SLURM -------------------------------------------------------------------------------------


@nox.session(venv_backend="none")
def slurm_scripts(session: nox.Session) -> None:
    """Write all job scripts of a site for an example user.

    ``-- --site generic --output FOLDER`` chooses the site and the folder.
    """
    session.run(sys.executable, "slurm/generate", "examples", *session.posargs, external=True)


@nox.session(venv_backend="none")
def slurm(session: nox.Session) -> None:
    """Run job scripts on a simulated cluster, two in an image: root on Debian 12, 8 GB of disk."""
    run_pytest(session, "-m", "cluster", "slurm/tests/cluster/test_slurm.py")


# --- images ------------------------------------------------------------------------------------


@nox.session(venv_backend="none")
def images(session: nox.Session) -> None:
    """Build, check and damage images, the slow tests too: root on Debian 12, 8 GB of disk."""
    run_pytest(session, "-m", "cluster", "slurm/tests/cluster/test_images.py")


def build_image(session: nox.Session, flavour: str) -> None:
    """Build an image through make."""
    session.run(
        "make", f"container-{flavour}", f"PYTHON={sys.executable}", *session.posargs, external=True
    )


@nox.session(venv_backend="none")
def container_rocm(session: nox.Session) -> None:
    """Build containers/aam-rocm.sif; words after -- are variables of make, such as BASE=PATH."""
    build_image(session, "rocm")


@nox.session(venv_backend="none")
def container_cuda(session: nox.Session) -> None:
    """Build containers/aam-cuda.sif."""
    build_image(session, "cuda")


@nox.session(venv_backend="none")
def container_cpu(session: nox.Session) -> None:
    """Build containers/aam-cpu.sif."""
    build_image(session, "cpu")


def run_image_tests(
    session: nox.Session, flavour: str, *options: str, launcher: tuple[str, ...] = ()
) -> None:
    """Run the tests inside an image."""
    command = [*launcher, sys.executable, "containers/test", flavour, *options]
    session.run(*command, *session.posargs, external=True)


def gpu_node_launcher(session: nox.Session) -> tuple[str, ...]:
    """Return the command that runs another one on a GPU node; empty on a machine with a GPU or
    without SLURM. The image and the controller of SLURM are checked before a node is asked for.
    """
    if Path("/dev/kfd").exists() or "SLURM_JOB_ID" in os.environ or shutil.which("srun") is None:
        return ()
    run_image_tests(session, "rocm", "--check")
    done = subprocess.run(["scontrol", "ping"], capture_output=True, text=True)
    if done.returncode or "UP" not in done.stdout:
        session.error(
            "srun is on PATH, but no controller of SLURM answers (scontrol ping: "
            f"{(done.stdout + done.stderr).strip()}); on a node without a GPU: "
            "nox -s test_rocm -- --no-gpu"
        )
    return (sys.executable, "slurm/generate", "reach", "--")


@nox.session(venv_backend="none")
def test_rocm(session: nox.Session) -> None:
    """Run the tests inside the ROCm image, GPU tests too; ``-- --no-gpu`` leaves them out.

    On a login node they run on a GPU node of AAM_SITE (cosmos), through srun. ``-- --rocm`` and
    ``-- --bind=PATH`` are options of containers/run.
    """
    launcher = () if "--no-gpu" in session.posargs else gpu_node_launcher(session)
    run_image_tests(session, "rocm", launcher=launcher)


@nox.session(venv_backend="none")
def test_cuda(session: nox.Session) -> None:
    """Run the tests inside the CUDA image, GPU tests too; ``-- --no-gpu`` leaves them out."""
    run_image_tests(session, "cuda", *([] if "--no-gpu" in session.posargs else ["--nv"]))


@nox.session(venv_backend="none")
def test_cpu(session: nox.Session) -> None:
    """Run the tests inside the CPU image."""
    run_image_tests(session, "cpu")
