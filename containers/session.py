#!/usr/bin/env python3
"""The tests inside an image: session.py FLAVOUR [--no-gpu] [--nv] [--rocm] [--contain] [--bind=PATH] [PYTEST OPTION]

The tests run from a copy of the committed and changed files, so that what is imported is the image's own aam.
JUnit XML, the self-test's JSON and, where aam has that command, the doctor's JSON are put into results/FLAVOUR.
Without --no-gpu a device must be visible, and every test with the marker `gpu` must have run. Exit status: that of
pytest, or 1 when a device or a GPU test is missing, or 2 when there is no image or it holds another aam than this.
Standard library only.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from parts.git import git
from parts.pins import FLAVOURS, read_pins
from parts.sidecar import read_sidecar
from parts.wheels import source_digest
from parts.whole import CONTAINERS, ROOT, FailedError, InputError

RUN = str(CONTAINERS / "run")
SWITCHES = ("--nv", "--rocm", "--contain")
# What needs a container engine or a cluster of its own is not run inside one.
LEFT_OUT = "--ignore=tests/cluster"
# The image's own aam is on its path, not the copy beside the tests.
PYTEST = ["python", "-P", "-m", "pytest", "-p", "no:cacheprovider", LEFT_OUT]


def sources(folder: Path) -> None:
    """Copy the files that git knows or would add; all but hidden ones where there is no git."""
    names = (git("ls-files", "-z", "--cached", "--others", "--exclude-standard") or "").split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    if names == [""]:
        shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "*.sif", "dist", "demo"))


def same_aam(image: Path) -> None:
    """Refuse an image whose aam is not that of this tree."""
    if read_sidecar(image).aam_sha256 != source_digest():
        flavour = image.stem.removeprefix("aam-")
        raise InputError(f"{image.name}: holds another aam than this tree; make container-{flavour} builds it anew")


def gpu_tests(enter: list[str], folder: Path) -> set[str]:
    """Names of the tests that carry the marker `gpu`."""
    command = [*enter, *PYTEST, "--collect-only", "-q", "-m", "gpu"]
    printed = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
    return {line.strip() for line in printed.splitlines() if "::" in line}


def ran(junit: Path) -> Iterator[str]:
    """Names of the tests that a JUnit file says were run, not skipped."""
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        if case.find("skipped") is None:
            yield f"{case.get('classname')}.{case.get('name')}"


def missing_gpu_tests(wanted: set[str], junit: Path) -> list[str]:
    """Tests of a GPU that are not in a JUnit file as run."""
    done = set(ran(junit))
    return sorted(name for name in wanted if re.sub(r"\.py::|::|/", ".", name) not in done)


def reports(enter: list[str], folder: Path, results: Path, need_device: bool) -> int:
    """Write what the image's self-test and doctor say; returns the self-test's exit status."""
    words = ["--json", str(results / "selftest.json"), *(["--need-device"] if need_device else [])]
    status = subprocess.run([*enter, "python", "/opt/aam/selftest.py", *words], cwd=folder).returncode
    listed = subprocess.run([*enter, "aam", "--help"], cwd=folder, capture_output=True, text=True).stdout
    if any(line.split()[:1] == ["doctor"] for line in listed.splitlines()):
        subprocess.run([*enter, "aam", "doctor", "--output", str(results / "doctor.json")], cwd=folder)
    return status


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command line; what is not known goes to pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flavour", choices=FLAVOURS)
    parser.add_argument("--no-gpu", action="store_true", help="leave out the tests that need a GPU")
    parser.add_argument("--bind", action="append", default=[], help="bind this too")
    parser.add_argument("--image", type=Path, help="another image than containers/aam-FLAVOUR.sif")
    for switch in SWITCHES:
        parser.add_argument(switch, action="store_true", help="as in containers/run")
    return parser.parse_known_args(words)


def run(options: argparse.Namespace, pytest: list[str]) -> int:
    """Run the tests and write the reports; returns the exit status."""
    image = (options.image or read_pins(options.flavour).image).absolute()
    if not image.exists():
        raise InputError(f"{image}: is missing; make container-{options.flavour} builds it")
    same_aam(image)
    need = options.flavour != "cpu" and not options.no_gpu
    results = ROOT / "results" / options.flavour
    results.mkdir(parents=True, exist_ok=True)
    junit = results / "junit.xml"
    # What stands there is another session's.
    for earlier in (junit, results / "selftest.json", results / "doctor.json"):
        earlier.unlink(missing_ok=True)
    enter = [
        sys.executable,
        RUN,
        "--env",
        "PYTHONDONTWRITEBYTECODE=1",
        *(each for each in SWITCHES if getattr(options, each[2:])),
    ]
    with tempfile.TemporaryDirectory(prefix="aam-tests-") as name:
        folder = Path(name)
        sources(folder)
        for bind in (str(results), *options.bind):
            enter += ["--bind", bind]
        enter.append(str(image))
        if reports(enter, folder, results, need):
            raise FailedError(
                f"{image.name}: its self-test failed, see above and {results}/selftest.json",
                *(["without a GPU: nox -s test_" + options.flavour + " -- --no-gpu"] if need else []),
            )
        marked = ["-m", "not cluster"] if need else []
        status = subprocess.run([*enter, *PYTEST, f"--junit-xml={junit}", *marked, *pytest], cwd=folder).returncode
        if status == 0 and need:
            missing = missing_gpu_tests(gpu_tests(enter, folder), junit)
            if missing:
                raise FailedError(f"{junit}: tests with the marker gpu did not run:", *missing)
    print(f"results: {results}")
    return status


def main() -> int:
    """Returns the exit status."""
    try:
        return run(*parse(sys.argv[1:]))
    except InputError as error:
        print("containers/session.py:", *(f"  {each}" for each in error.problems), sep="\n", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main())
