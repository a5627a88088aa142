"""Our own wheel, and the folders where pip finds wheels on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlparse

from parts.git import commit_time
from parts.whole import ROOT, FailedError, sha256, whole

SOURCES = ("aam", "pyproject.toml", "README.md", "LICENSE")


def version() -> str:
    """The version that the package states."""
    text = (ROOT / "aam" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)[1]


def wheel_path() -> Path:
    """Where our own wheel is put."""
    return ROOT / "dist" / f"aam-{version()}-py3-none-any.whl"


def make_wheel(python: str = sys.executable) -> Path:
    """Build our wheel from a copy of the sources: no stale build folder, and the same bytes from the same commit."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            origin, copy = ROOT / name, Path(folder) / "source" / name
            copy.parent.mkdir(exist_ok=True)
            if origin.is_dir():
                shutil.copytree(origin, copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            else:
                shutil.copy(origin, copy)
        command = [python, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, f"{folder}/source"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        made = list(Path(folder).glob("*.whl"))
        if done.returncode or len(made) != 1:
            raise FailedError("pip could not build the wheel of aam:", *done.stderr.strip().splitlines()[-8:])
        if not wheel_path().exists() or sha256(wheel_path()) != sha256(made[0]):
            with whole(wheel_path()) as temporary:
                shutil.copy(made[0], temporary)
    return wheel_path()


def wheel_folders() -> list[Path]:
    """Folders of wheels on this machine that pip's settings name."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    values = re.findall(r"(?m)^\S+\.find-links='(.*)'$", listed)
    words = [word for value in values for word in re.split(r"(?:\s|\\n)+", value)]
    paths = [Path(unquote(urlparse(word).path)) for word in words if word.startswith(("/", "file:"))]
    return sorted({path for path in paths if path.is_dir()})
