"""The sources of aam and of its 16S plugin for an image, their wheels, and the folders on this
machine where pip looks for wheels.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from aam.files.atomic import file_digest
from containers.lib.errors import FailedError
from containers.lib.files import OUTPUT, PACKAGE, ROOT, UNKNOWN, commit_label, commit_time

# The oldest setuptools that builds the wheel.
SETUPTOOLS = 77
BUILD_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
SOURCES = ("aam", "containers", "slurm", *BUILD_FILES)
# A distribution of its own. Images that are built from a checkout hold it; an installed aam has no
# sources of it.
PLUGIN = ROOT / "plugins" / "aam-16s"
# Images next to the definitions, caches, and what an installed package holds twice.
LEFT_OUT = re.compile(r"\.(pyc|sif(\.[\w.]+)?|squashfs|oci\.tar)$|/(\.[^/]*|(bundled|tests)/.*)$")


def version() -> str:
    """Return the version of aam."""
    text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    return str(re.findall(r'(?m)^__version__ = "(.+)"', text)[0])


def wheel_path() -> Path:
    """Return the path of the wheel of aam."""
    return OUTPUT / "dist" / f"attention_all_microbes-{version()}-py3-none-any.whl"


def source_files() -> dict[str, Path]:
    """Return the files that the wheel is made of, by their names in the repository."""
    files: dict[str, Path] = {}
    for source in SOURCES:
        path = PACKAGE if source == "aam" else ROOT / source
        paths = path.rglob("*") if path.is_dir() else [path]
        files |= {str(source / file.relative_to(path)): file for file in paths if file.is_file()}
    return {name: path for name, path in sorted(files.items()) if not LEFT_OUT.search(name)}


def plugin_files() -> dict[str, Path]:
    """Return the files that the plugin's wheel is made of, by their names in the repository."""
    files = {str(path.relative_to(ROOT)): path for path in PLUGIN.rglob("*") if path.is_file()}
    left_out = re.compile(r"/(tests|build|__pycache__|\.[^/]*|[^/]*\.egg-info)/")
    return {name: path for name, path in sorted(files.items()) if not left_out.search(name)}


def source_digest() -> str:
    """Return a digest of the packages in an image, which does not depend on the tool that packs
    them or on README.md.
    """
    packages = ("aam/", "plugins/aam-16s/aam_16s/")
    files = (source_files() | plugin_files()).items()
    return digest_of_files({name: path for name, path in files if name.startswith(packages)})


def digest_of_files(files: dict[str, Path]) -> str:
    """Return the SHA-256 over the names and contents of files."""
    lines = (f"{name}\0{file_digest(path)}\n" for name, path in files.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def isolation_options() -> list[str]:
    """Return the option that saves pip a download where this Python has a setuptools that is new
    enough.
    """
    try:
        is_new_enough = int(metadata.version("setuptools").split(".")[0]) >= SETUPTOOLS
    except (metadata.PackageNotFoundError, ValueError):
        is_new_enough = False
    return ["--no-build-isolation"] if is_new_enough else []


def build_wheel(sources: Path, folder: Path) -> Path:
    """Build the wheel of a folder of sources or a source distribution, write it to `folder`, and
    return its path.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
    environment["AAM_COMMIT"] = commit_label().removesuffix(UNKNOWN)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", *isolation_options()]
    command += ["--wheel-dir", str(folder), str(sources)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        printed = done.stderr.strip().splitlines()[-8:]
        raise FailedError("pip could not build the wheel of aam:", *printed)
    return wheels[0]


def copy_sources(folder: Path) -> None:
    """Copy what an image is made of into a folder, which the definition's relative paths start
    from: no build folder and no image in the checkout has an effect.
    """
    for file, path in (source_files() | plugin_files()).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / file)
    # An installed aam has no sources of its plugin.
    (folder / PLUGIN.relative_to(ROOT)).mkdir(parents=True, exist_ok=True)


def wheel_folders() -> list[Path]:
    """Return the folders of wheels on this machine that pip's settings name (find-links)."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(command, capture_output=True, text=True).stdout
    values = re.findall(r"(?m)^\S+\.find-links='(.*)'$", settings)
    links = [link for value in values for link in re.split(r"(?:\s|\\n)+", value)]
    links = [urlparse(link).path for link in links if link.startswith(("/", "file:"))]
    return sorted({path for path in map(Path, map(unquote, links)) if path.is_dir()})
