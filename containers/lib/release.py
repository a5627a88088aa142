"""`make release`: check what a release needs, build its files and its pages, and run the demo from
its wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from aam.errors import shown
from aam.files.atomic import atomic_file, file_digest
from containers.lib.engine import scratch_folder
from containers.lib.errors import FailedError, raise_if_any
from containers.lib.files import CONTAINERS, ROOT, changed_files, commit_time, revision, write_text
from containers.lib.image_tests import copy_sources
from containers.lib.wheels import build_wheel, version, wheel_path

# Files that state the version, besides aam/__init__.py, and how.
STATED = {
    "CITATION.cff": r"(?m)^version: (.+)$",
    "containers/aam-cuda.def": r"VERSION=([\d.]+)",
    "containers/aam-rocm.def": r"VERSION=([\d.]+)",
    **dict.fromkeys(
        ("plugins/aam-16s/pyproject.toml", "plugins/q2-aam/pyproject.toml"),
        r'(?m)(?:^version = "|"attention-all-microbes==)([\d.]+)',
    ),
}
BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def version_problems(root: Path = ROOT) -> list[str]:
    """Return the files below `root` that state another version than aam/__init__.py, or none."""
    problems = []
    for name, pattern in STATED.items():
        stated = re.findall(pattern, (root / name).read_text(encoding="utf-8"))
        if set(stated) != {version()}:
            problems.append(f"{name}: states the versions {stated}, aam/__init__.py {version()}")
    return problems


def release_problems(root: Path = ROOT) -> list[str]:
    """Return why the checkout `root` is not ready for a release."""
    problems = version_problems(root)
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"(?m)^## \[(.+?)\] - (\S+)$", changes)
    if not newest or newest[1] != version() or not re.fullmatch(r"\d{4}-\d\d-\d\d", newest[2]):
        found = newest[0] if newest else "no section"
        expected = f"expected '## [{version()}] - YYYY-MM-DD'"
        problems.append(f"CHANGELOG.md: begins with {found!r}, {expected}")
    files = changed_files(root)
    if files or revision(root)[1]:
        differing = f"{shown(files)} differ from the commit or are new"
        problem = differing if files else "there is no commit"
        problems.append(f"git: {problem}; commit them first")
    return problems


def run(what: str, command: list[str], folder: Path) -> None:
    """Run a command in a folder, with no Python path but its own; raise `FailedError` when it
    fails.
    """
    own = ("PYTHON", "MAKE")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    environment["SOURCE_DATE_EPOCH"] = str(commit_time())
    print(f"+ {' '.join(command)}", file=sys.stderr, flush=True)
    status = subprocess.run(command, cwd=folder, env=environment).returncode
    if status:
        raise FailedError(f"{what} failed with exit status {status}, see above")


def make_sdist(folder: Path) -> Path:
    """Build the source distribution from the files that git knows, in `folder`, and return its
    path.
    """
    copy_sources(folder / "sources")
    command = [sys.executable, "-c", BUILD_SDIST, str(folder)]
    run("the source distribution", command, folder / "sources")
    (path,) = folder.glob("*.tar.gz")
    return path


def make_pages(folder: Path) -> Path:
    """Build the documentation site in `folder`, and return the archive that a host of pages takes
    as it is.
    """
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q"]
    command += ["-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / "pages")]
    run("the pages", command, folder)
    name = f"attention_all_microbes-{version()}-docs"
    return Path(shutil.make_archive(str(folder / name), "zip", folder / "pages"))


def make_reference(folder: Path, plugins: Path) -> Path:
    """Archive the 16S reference of any region, which is part of no wheel, and return its path."""
    name = str(folder / "aam-16s-any-region")
    return Path(shutil.make_archive(name, "zip", plugins / "aam-16s", "16s"))


def write_digests(paths: list[Path]) -> Path:
    """Write the SHA-256 of files next to them, in the form that `sha256sum --check` reads."""
    lines = [f"{file_digest(path)}  {path.name}\n" for path in sorted(paths)]
    sums = paths[0].with_name("SHA256SUMS")
    write_text(sums, "".join(lines))
    return sums


def release(draft: bool) -> None:
    """Build and try the files of a release, and leave them in dist; a draft is built in spite of
    what is missing.

    Raises
    ------
    InputError
        All problems that can be seen before the build, or the step that failed.
    """
    problems = release_problems()
    raise_if_any([] if draft else problems)
    for problem in problems:
        print(f"note: {problem}")
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="release-") as name:
        folder = Path(name)
        sdist = make_sdist(folder)
        wheel = build_wheel(sdist, folder)
        names = ("aam-16s", "q2-aam")
        sources = folder / "sources" / "plugins"
        plugins = [build_wheel(sources / name, folder / name) for name in names]
        check = [sys.executable, "-m", "twine", "check", "--strict"]
        run("twine", [*check, *map(str, (wheel, sdist, *plugins))], folder)
        others = (make_pages(folder), make_reference(folder, sources))
        environment = folder / "environment"
        make = [sys.executable, str(CONTAINERS / "inside" / "environment.py"), str(environment)]
        lock = CONTAINERS / "lock" / "runtime.txt"
        run("the environment", [*make, str(lock), "--wheel", str(wheel)], folder)
        aam = environment / "bin" / "aam"
        run("aam --help", [str(aam), "--help"], folder)
        demo = ["make", "-f", str(ROOT / "Makefile"), "-o", "setup", "demo", f"AAM={aam}"]
        run("the demo", demo, folder)
        written = []
        for path in (sdist, wheel, *plugins, *others):
            written.append(wheel_path().with_name(path.name))
            with atomic_file(written[-1]) as temporary:
                shutil.copyfile(path, temporary)
    sums = write_digests(written)
    print(f"{sums}: the digests of {len(written)} files; sign it: gpg --armor --detach-sign {sums}")
    if not problems:
        print(f"git tag -s v{version()} -m 'aam {version()}' {revision()[0]}")
