"""Run the tests inside an image.

The fast tests run from a copy of the committed and changed files without the packages that the
image holds, so that the image's own are imported. Tests with the marker `sources` need those
packages' sources and are left out. JUnit XML and the report of the self-test are written to
results/FLAVOUR. In a GPU flavour the tests with the marker `gpu` run too and aam doctor writes its
report, unless --no-gpu leaves them out: a GPU must be visible, and every GPU test must have run.

Exit status: that of pytest; 1 when a GPU or a GPU test is missing; 2 when there is no image, or its
aam is not that of these sources. Needs Python 3.11 or newer and nothing else.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from containers.lib.errors import FailedError, InputError, error_message
from containers.lib.files import CONTAINERS, ROOT, git
from containers.lib.pins import FLAVOURS, read_pins
from containers.lib.sidecar import read_sidecar
from containers.lib.wheels import source_digest

PROGRAM = "containers/test"
RUN_SWITCHES = ("--nv", "--rocm", "--contain")
PYTEST = ["python", "-m", "pytest", "-p", "no:cacheprovider"]
INSTALLED = ("aam/", "plugins/aam-16s/aam_16s/")
FAST = "not slow and not gpu and not cluster and not sources"
FAST_AND_GPU = "gpu or not (slow or cluster or sources)"


def copy_sources(folder: Path, left_out: tuple[str, ...] = ()) -> None:
    """Copy the files that git knows or would add, but for folders; without git, all files but
    hidden ones.
    """
    names = (git("ls-files", "-z", "--cached", "--others", "--exclude-standard") or "").split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file() and not name.startswith(left_out):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    if names == [""]:
        built = shutil.ignore_patterns(".*", "*.sif", "*.oci.tar", "dist", "demo")
        shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=built)
        for name in left_out:
            shutil.rmtree(folder / name)


def check_image(image: Path, flavour: str) -> None:
    """Raise `InputError` for an image that is missing, or whose aam is not that of these
    sources.
    """
    if not image.exists():
        raise InputError(f"{image}: is missing; make container-{flavour} builds it")
    if read_sidecar(image).aam_sha256 != source_digest():
        hint = f"make container-{flavour} builds it anew"
        raise InputError(f"{image.name}: holds another aam than these sources; {hint}")


def gpu_tests(enter: list[str], folder: Path) -> set[str]:
    """Return the names of the tests with the marker `gpu`."""
    command = [*enter, *PYTEST, "--collect-only", "-q", "-m", "gpu"]
    printed = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
    return {line.strip() for line in printed.splitlines() if "::" in line}


def missing_tests(expected: set[str], junit: Path) -> list[str]:
    """Return the expected tests that a JUnit file does not name as run."""
    cases = ElementTree.parse(junit).getroot().iter("testcase")
    cases_run = (case for case in cases if case.find("skipped") is None)
    executed = {f"{case.get('classname')}.{case.get('name')}" for case in cases_run}
    return sorted(name for name in expected if re.sub(r"\.py::|::|/", ".", name) not in executed)


def write_reports(enter: list[str], folder: Path, results: Path, need_gpu: bool) -> int:
    """Write the report of the self-test and, on a GPU, that of aam doctor; return the exit status
    of the self-test.
    """
    words = ["--json", str(results / "selftest.json"), *(["--need-device"] if need_gpu else [])]
    selftest = [*enter, "python", "/opt/aam/selftest.py", *words]
    status = subprocess.run(selftest, cwd=folder).returncode
    if need_gpu and status == 0:
        doctor = [*enter, "aam", "doctor", "--output", str(results / "doctor.json")]
        subprocess.run(doctor, cwd=folder)
    return status


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the parsed command line, and the words that pytest gets."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("flavour", choices=FLAVOURS)
    parser.add_argument("--no-gpu", action="store_true", help="leave out the tests that need a GPU")
    parser.add_argument("--check", action="store_true", help="only check that the image is there")
    parser.add_argument("--bind", action="append", default=[], help="bind this too")
    parser.add_argument("--image", type=Path, help="another image than containers/aam-FLAVOUR.sif")
    for switch in RUN_SWITCHES:
        parser.add_argument(switch, action="store_true", help="as in containers/run")
    return parser.parse_known_args(words)


def empty_results(flavour: str) -> Path:
    """Make the folder of the results, without the reports of an earlier run."""
    results = ROOT / "results" / flavour
    results.mkdir(parents=True, exist_ok=True)
    for name in ("junit.xml", "selftest.json", "doctor.json"):
        (results / name).unlink(missing_ok=True)
    return results


def run(options: argparse.Namespace, pytest_words: list[str]) -> int:
    """Write the reports, run the tests, and return the exit status."""
    image = (options.image or read_pins(options.flavour).image).absolute()
    check_image(image, options.flavour)
    if options.check:
        return 0
    need_gpu = options.flavour != "cpu" and not options.no_gpu
    results = empty_results(options.flavour)
    junit = results / "junit.xml"
    enter = [sys.executable, str(CONTAINERS / "run"), "--env", "PYTHONDONTWRITEBYTECODE=1"]
    enter += [switch for switch in RUN_SWITCHES if getattr(options, switch[2:])]
    enter += [word for path in (str(results), *options.bind) for word in ("--bind", path)]
    enter.append(str(image))
    with tempfile.TemporaryDirectory(prefix="aam-tests-") as name:
        folder = Path(name)
        copy_sources(folder, INSTALLED)
        enter[2:2] = ["--env", f"PYTHONPATH={folder}"]
        if write_reports(enter, folder, results, need_gpu):
            where = f"see above and {results}/selftest.json"
            hint = f"without a GPU: nox -s test_{options.flavour} -- --no-gpu"
            problem = f"{image.name}: its self-test failed, {where}"
            raise FailedError(problem, *([hint] if need_gpu else []))
        # Tests on a GPU run one after the other: each takes what memory it needs.
        chosen = ["-m", FAST_AND_GPU] if need_gpu else ["-m", FAST, "-n", "2"]
        command = [*enter, *PYTEST, f"--junit-xml={junit}", *chosen, *pytest_words]
        status = subprocess.run(command, cwd=folder).returncode
        missing = missing_tests(gpu_tests(enter, folder), junit) if need_gpu and status == 0 else []
    if missing:
        raise FailedError(f"{junit}: tests with the marker gpu did not run:", *missing)
    print(f"results: {results}")
    return status


def main(words: list[str]) -> int:
    """Run the program and return its exit status."""
    try:
        return run(*parse(words))
    except InputError as error:
        print(error_message(PROGRAM, error), file=sys.stderr)
        return error.status
