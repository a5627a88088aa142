"""Our own wheel, and the folders where pip finds wheels on this machine."""

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

from parts.git import commit_time
from parts.whole import ROOT, FailedError, sha256, whole, write_text

SETUPTOOLS = 77
SOURCES = ("aam", "pyproject.toml", "README.md", "LICENSE")


def version() -> str:
    """The version that the package states."""
    text = (ROOT / "aam" / "__init__.py").read_text(encoding="utf-8")
    return str(re.findall(r'(?m)^__version__ = "(.+)"', text)[0])


def wheel_path() -> Path:
    """Where our own wheel is put."""
    return ROOT / "dist" / f"aam-{version()}-py3-none-any.whl"


def source_files() -> list[Path]:
    """The files that the wheel is made of."""
    listed = [
        path for name in SOURCES for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])
    ]
    return sorted(path for path in listed if path.is_file() and path.suffix != ".pyc")


def source_digest() -> str:
    """A digest of the package in our wheel, whichever tool packs it and whatever the pages beside it say."""
    return digest([path for path in source_files() if path.is_relative_to(ROOT / "aam")])


def digest(files: list[Path]) -> str:
    """SHA-256 over the names and contents of files of the repository."""
    lines = (f"{path.relative_to(ROOT)}\0{sha256(path)}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def builds_offline() -> list[str]:
    """The option that spares pip a download where this Python has what builds a wheel."""
    try:
        enough = int(metadata.version("setuptools").split(".")[0]) >= SETUPTOOLS
    except (metadata.PackageNotFoundError, ValueError):
        enough = False
    return ["--no-build-isolation"] if enough else []


def make_wheel() -> Path:
    """Build our wheel, unless it is of these very sources, from a copy of them: no stale build folder gets in."""
    stamp, sources = wheel_path().with_suffix(".whl.sources"), digest(source_files())
    if wheel_path().exists() and stamp.exists() and stamp.read_text() == sources:
        return wheel_path()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            origin, copy = ROOT / name, Path(folder) / "source" / name
            copy.parent.mkdir(exist_ok=True)
            if origin.is_dir():
                shutil.copytree(origin, copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            else:
                shutil.copy(origin, copy)
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", *builds_offline()]
        command += ["--wheel-dir", folder, f"{folder}/source"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        made = list(Path(folder).glob("*.whl"))
        if done.returncode or len(made) != 1:
            raise FailedError("pip could not build the wheel of aam:", *done.stderr.strip().splitlines()[-8:])
        with whole(wheel_path()) as temporary:
            shutil.copyfile(made[0], temporary)
    write_text(stamp, sources)
    return wheel_path()


def wheel_folders() -> list[Path]:
    """Folders of wheels on this machine that pip's settings name."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    values = re.findall(r"(?m)^\S+\.find-links='(.*)'$", listed)
    words = [word for value in values for word in re.split(r"(?:\s|\\n)+", value)]
    paths = [Path(unquote(urlparse(word).path)) for word in words if word.startswith(("/", "file:"))]
    return sorted({path for path in paths if path.is_dir()})
