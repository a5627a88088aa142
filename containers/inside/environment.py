#!/usr/bin/env python3
"""Make a virtual environment from a lock: for `make setup`, for a definition, and for a user who
may not build.

The first part of a lock holds wheels that pip's own index does not have. They are taken from the
folders that pip's settings name (find-links), or else from the index that the lock names. The
second part is installed by the uv of the lock's header, with the index, proxy and certificates of
pip's settings; where uv fails, by pip. Every file must match its hash. Run this with the Python
that the environment is for; it needs the standard library only.
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
        "environment: Python 3.11 or newer is needed, this is %s; name one: PYTHON=python3.11"
        % sys.version.split()[0]
    )

# The line between the two parts of a lock; containers/lib/lock.py writes it.
REST = "# --- from pip's own index\n"
HASHED = ("install", "--require-hashes", "--no-deps", "--only-binary=:all:")
# Settings of pip, and the variables with which uv takes their values.
UV_SETTINGS = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY"}


def split_lock(lock: str) -> tuple[str, str]:
    """Return the lines of a lock for the vendor's index, and those for pip's own."""
    vendor, separator, rest = lock.partition(REST)
    if not separator:
        sys.exit(f"environment: the lock has no line {REST.strip()!r}; make lock writes it anew")
    return vendor, rest


def header_value(lock: str, name: str) -> str:
    """Return a value of the header of a lock."""
    match = re.search(rf"(?m)^# {name}: *(.*)$", lock)
    return match[1] if match else ""


def check_python(lock: str) -> None:
    """Exit when the lock was not made for this Python."""
    lowest, _, highest = header_value(lock, "python").partition(" to ")
    here = sys.version_info[:2]
    if not tuple(map(int, lowest.split("."))) <= here <= tuple(map(int, highest.split("."))):
        found = f"the lock is for Python {lowest} to {highest}, this is {here[0]}.{here[1]}"
        sys.exit(f"environment: {found}; name one: PYTHON=python{lowest}")


def make_venv(venv: Path) -> Path:
    """Make the environment if it does not exist; return its Python."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    return python


def pip(python: Path, *arguments: str, quiet: bool = False) -> bool:
    """Run pip and return whether it succeeded."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=quiet).returncode == 0


def install(python: Path, lines: str, *arguments: str, quiet: bool = False) -> bool:
    """Install requirements with hashes and return whether pip succeeded."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(lines)
        file.flush()
        return pip(python, *HASHED, *arguments, "--requirement", file.name, quiet=quiet)


def pip_settings(python: Path) -> dict[str, str]:
    """Return the settings of pip by their names: of its files, then of the environment."""
    command = [str(python), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout
    values: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        values.update(re.findall(rf"(?m)^{section}\.\.?([\w-]+)='(.*)'$", listed))
    return values


def uv_environment(settings: dict[str, str]) -> dict[str, str]:
    """Return the environment in which uv reaches what pip reaches; a variable that is set stays."""
    named = {UV_SETTINGS[key]: value for key, value in settings.items() if key in UV_SETTINGS}
    return named | dict(os.environ)


def install_with_uv(python: Path, lock: str, lines: str, for_image: bool) -> str:
    """Install requirements with hashes by the uv of a lock; return why it failed, or nothing.

    uv links files from its cache where it can. An image keeps no cache, and bytecode of everything.
    """
    settings = pip_settings(python)
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return "pip's settings say no-index"
    with tempfile.TemporaryDirectory() as name:
        options = ["--no-cache-dir"] if for_image else []
        requirement = header_value(lock, "uv").replace(" ; ", " ")
        if not install(python, requirement, *options, "--target", name, quiet=True):
            return f"pip finds no {requirement.partition(' ')[0]}"
        requirements = Path(name) / "requirements.txt"
        requirements.write_text(lines, encoding="utf-8")
        command = [f"{name}/bin/uv", "pip", *HASHED, "--requirement", str(requirements)]
        command += ["--python", str(python)]
        command += ["--no-cache", "--compile-bytecode"] if for_image else []
        environment = uv_environment(settings)
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    last_lines = [line.strip() for line in done.stderr.splitlines() if line.strip()][-2:]
    return "" if done.returncode == 0 else f"uv failed ({' '.join(last_lines)})"


def install_rest(python: Path, lock: str, lines: str, for_image: bool, *arguments: str) -> bool:
    """Install what pip's own index has, with uv, else with pip; return whether one succeeded."""
    reason = install_with_uv(python, lock, lines, for_image)
    if reason:
        print(f"environment: {reason}; pip installs instead", file=sys.stderr, flush=True)
    return not reason or install(python, lines, *arguments)


def install_vendor(python: Path, lines: str, index: str, *arguments: str) -> None:
    """Install the vendor's wheels, from a folder of pip's settings or from the index."""
    names = ", ".join(re.findall(r"(?m)^\w\S*", lines))
    if not names or install(python, lines, "--no-index", *arguments, quiet=True):
        return
    if not index:
        missing = f"no wheel of {names} in the folders of pip's find-links"
        sys.exit(f"environment: {missing}, and no index is given (--index)")
    if not install(python, lines, "--index-url", index, *arguments):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        missing = f"no wheel for Python {version} with a hash of the lock on {index}"
        sys.exit(f"environment: {names}: {missing}")


def projects(sources):
    """Return the folders below that of the sources which pip can install."""
    found = [sources, *sorted(sources.glob("plugins/*"))] if sources else []
    return [str(folder) for folder in found if (folder / "pyproject.toml").exists()]


def main() -> None:
    """Make the environment or bring it up to date."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("venv", type=Path)
    add("lock", type=Path)
    add("--index", default="", help="index of the vendor's wheels (default: that of the lock)")
    add("--torch", default="", help="install this PyTorch instead of the lock's, without a hash")
    add("--wheel", nargs="+", default=[], help="the wheels of aam, installed last")
    add("--sources", type=Path, help="the sources of aam and its plugins instead of wheels")
    add("--editable", nargs="+", default=[], help="folders instead of wheels")
    add("--image", action="store_true", help="keep no cache, and compile everything to bytecode")
    options = parser.parse_args()
    words = ["--no-cache-dir"] if options.image else ["--no-compile"]
    lock = options.lock.read_text(encoding="utf-8")
    check_python(lock)
    vendor, rest = split_lock(lock)
    python = make_venv(options.venv.absolute())
    if options.torch:
        index = ["--index-url", options.index] if options.index else []
        succeeded = pip(python, "install", *words, *index, options.torch)
    else:
        install_vendor(python, vendor, options.index or header_value(lock, "index"), *words)
        succeeded = True
    succeeded = succeeded and install_rest(python, lock, rest, options.image, *words)
    editable = (word for folder in options.editable for word in ("--editable", folder))
    aam = [*options.wheel, *editable, *projects(options.sources)]
    if aam and succeeded:
        words += ["--no-deps", "--no-index", "--no-build-isolation", *aam]
        succeeded = pip(python, "install", *words)
    if not succeeded:
        sys.exit("environment: pip failed; its output stands above")
    if not options.torch and not pip(python, "check"):
        wrong = "the lock's packages contradict each other (pip check)"
        sys.exit(f"environment: {wrong}; make lock resolves them anew")


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main()
