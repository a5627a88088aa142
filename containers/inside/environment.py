#!/usr/bin/env python3
"""Make a virtual environment from a lock, the same way for `make setup`, a definition and a site without build rights.

The first part of a lock holds what pip's own index does not have. Those wheels are looked for where pip's
settings say that wheels lie (find-links), then on the index that the lock names. Every file must match its hash.
Runs with the Python that the environment is for; standard library only.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit(
        "environment: Python 3.11 or newer is needed, this is %s; name one: PYTHON=python3.11" % sys.version.split()[0]
    )

REST = "# --- from pip's own index\n"
INSTALL = ("install", "--require-hashes", "--no-deps", "--only-binary=:all:")


def halves(lock: str) -> tuple[str, str]:
    """A lock's lines for the vendor's index, and those for pip's own."""
    vendor, mark, rest = lock.partition(REST)
    if not mark:
        sys.exit(f"environment: the lock has no line {REST.strip()!r}; make lock writes it anew")
    return vendor, rest


def header(lock: str, name: str) -> str:
    """What the head of a lock says under a name."""
    found = re.search(rf"(?m)^# {name}: *(.*)$", lock)
    return found[1] if found else ""


def check_python(lock: str) -> None:
    """Refuse a Python that the lock was not made for."""
    lowest, _, highest = header(lock, "python").partition(" to ")
    here = sys.version_info[:2]
    if not tuple(map(int, lowest.split("."))) <= here <= tuple(map(int, highest.split("."))):
        names = f"Python {lowest} to {highest}"
        sys.exit(f"environment: the lock is for {names}, this is {here[0]}.{here[1]}; name one: PYTHON=python{lowest}")


def python_of(venv: Path) -> Path:
    """The environment's Python; the environment is made when it is not there."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    return python


def pip(python: Path, *arguments: str, quiet: bool = False) -> bool:
    """Run pip; returns whether it succeeded."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=quiet).returncode == 0


def install(python: Path, lines: str, *arguments: str, quiet: bool = False) -> bool:
    """Install hashed requirements; returns whether pip succeeded."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(lines)
        file.flush()
        return pip(python, *INSTALL, *arguments, "--requirement", file.name, quiet=quiet)


def install_vendor(python: Path, lines: str, index: str, *arguments: str) -> None:
    """Install what the vendor's index holds, from a wheel that lies here or from the index."""
    names = ", ".join(re.findall(r"(?m)^\w\S*", lines))
    if not names or install(python, lines, "--no-index", *arguments, quiet=True):
        return
    if not index:
        sys.exit(f"environment: no wheel of {names} lies here (pip's find-links), and no index is given (--index)")
    if not install(python, lines, "--index-url", index, *arguments):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        sys.exit(f"environment: {names}: no wheel for Python {version} with a hash of the lock came from {index}")


def main() -> None:
    """Make the environment, or bring it up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=Path)
    parser.add_argument("lock", type=Path)
    parser.add_argument(
        "--index", default="", help="where the lock's first part comes from (default: the lock says it)"
    )
    parser.add_argument("--torch", default="", help="another PyTorch than the lock's, without a hash")
    parser.add_argument("--wheel", type=Path, help="the project's own wheel, installed last")
    parser.add_argument("--editable", type=Path, help="the project's folder instead")
    parser.add_argument("--no-cache", action="store_true", help="leave no cache of pip's behind")
    options = parser.parse_args()
    cache = ["--no-cache-dir"] if options.no_cache else []
    lock = options.lock.read_text(encoding="utf-8")
    check_python(lock)
    vendor, rest = halves(lock)
    python = python_of(options.venv.absolute())
    if options.torch:
        index = ["--index-url", options.index] if options.index else []
        done = pip(python, "install", *cache, *index, options.torch)
    else:
        install_vendor(python, vendor, options.index or header(lock, "index"), *cache)
        done = True
    done = done and install(python, rest, *cache)
    own = [str(options.wheel)] if options.wheel else ["--editable", str(options.editable)] if options.editable else []
    if own:
        done = done and pip(python, "install", *cache, "--no-deps", "--no-index", "--no-build-isolation", *own)
    if not done:
        sys.exit("environment: pip failed; what it said stands above")
    if not options.torch and not pip(python, "check"):
        sys.exit("environment: the lock's packages do not fit together (pip check); make lock resolves them anew")


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main()
