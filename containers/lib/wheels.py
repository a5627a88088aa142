"""The wheel of aam, and the folders on this machine where pip looks for wheels."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from containers.lib.errors import FailedError
from containers.lib.files import ROOT, atomic_file, sha256, write_text
from containers.lib.git import commit_time

# The oldest setuptools that builds the wheel.
SETUPTOOLS = 77
SOURCES = ("aam", "pyproject.toml", "README.md", "LICENSE")


def version() -> str:
    """Return the version of aam."""
    text = (ROOT / "aam" / "__init__.py").read_text(encoding="utf-8")
    return str(re.findall(r'(?m)^__version__ = "(.+)"', text)[0])


def wheel_path() -> Path:
    """Return the path of the wheel of aam."""
    return ROOT / "dist" / f"aam-{version()}-py3-none-any.whl"


def source_files() -> list[Path]:
    """Return the files that the wheel is made of."""
    paths: list[Path] = []
    for name in SOURCES:
        path = ROOT / name
        paths += path.rglob("*") if path.is_dir() else [path]
    return sorted(path for path in paths if path.is_file() and path.suffix != ".pyc")


def source_digest() -> str:
    """Return a digest of the package aam, which does not depend on the tool that packs it or on README.md."""
    return digest_of_files([path for path in source_files() if path.is_relative_to(ROOT / "aam")])


def digest_of_files(files: list[Path]) -> str:
    """Return the SHA-256 over the names and contents of files of the repository."""
    lines = (f"{path.relative_to(ROOT)}\0{sha256(path)}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def isolation_options() -> list[str]:
    """Return the option that saves pip a download where this Python has a setuptools that is new enough."""
    try:
        is_new_enough = int(metadata.version("setuptools").split(".")[0]) >= SETUPTOOLS
    except (metadata.PackageNotFoundError, ValueError):
        is_new_enough = False
    return ["--no-build-isolation"] if is_new_enough else []


def copy_sources(folder: Path) -> None:
    """Copy the files that the wheel is made of into a folder."""
    folder.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(path, folder / name)


def make_wheel() -> Path:
    """Build the wheel of aam and return its path; a wheel of the same sources is kept.

    It is built from a copy of the sources, so that a build folder in the checkout has no effect.
    """
    stamp = wheel_path().with_suffix(".whl.sources")
    digest = digest_of_files(source_files())
    if wheel_path().exists() and stamp.exists() and stamp.read_text() == digest:
        return wheel_path()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(Path(folder) / "source")
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", *isolation_options()]
        command += ["--wheel-dir", folder, f"{folder}/source"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise FailedError("pip could not build the wheel of aam:", *done.stderr.strip().splitlines()[-8:])
        with atomic_file(wheel_path()) as temporary:
            shutil.copyfile(wheels[0], temporary)
    write_text(stamp, digest)
    return wheel_path()


def wheel_folders() -> list[Path]:
    """Return the folders of wheels on this machine that pip's settings name (find-links)."""
    settings = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    values = re.findall(r"(?m)^\S+\.find-links='(.*)'$", settings)
    links = [link for value in values for link in re.split(r"(?:\s|\\n)+", value)]
    paths = [Path(unquote(urlparse(link).path)) for link in links if link.startswith(("/", "file:"))]
    return sorted({path for path in paths if path.is_dir()})
