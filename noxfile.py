"""Sessions that need an environment of their own: every Python, the lowest versions, the benchmarks.

``nox -l`` lists them. What follows ``--`` goes to the tool that a session calls. Python versions, dependency
groups and lower bounds are read from pyproject.toml. ``TORCH`` and ``TORCH_INDEX`` choose the torch build, as
they do for ``make setup``.
"""

from __future__ import annotations

import os
import shutil

import nox
from packaging.requirements import Requirement

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
MINIMUMS_GB = 8

nox.options.sessions = ["lint", "types", "test"]
nox.options.reuse_venv = "yes"


def install(session: nox.Session, *groups: str, torch: str = os.environ.get("TORCH", "torch")) -> None:
    """Install torch from the index it was asked from, then the project with `groups`."""
    index = os.environ.get("TORCH_INDEX")
    session.install(*(["--index-url", index] if index else []), torch)
    session.install("--editable", f".[{','.join(groups)}]" if groups else ".")


def tools(group: str, *names: str) -> list[str]:
    """Requirements called `names` in an optional group of pyproject.toml."""
    listed = PROJECT["project"]["optional-dependencies"][group]
    return [line for line in listed if Requirement(line).name in names]


def lowest(requirements: list[str]) -> list[str]:
    """Pin each requirement that holds here to its lower bound."""
    pins = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate():
            bounds = [part.version for part in requirement.specifier if part.operator == ">="]
            pins.append(f"{requirement.name}=={bounds[0]}")
    return pins


@nox.session(python=PYTHONS)
def test(session: nox.Session) -> None:
    """Run the tests on every supported Python; one that is not installed is skipped by name."""
    install(session, "test")
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format; ``nox -s lint -- --fix`` mends what ruff can."""
    session.install(*tools("lint", "ruff"))
    session.run("ruff", "check", *session.posargs, ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types and the direction of imports."""
    install(session, "lint")
    session.run("mypy", *session.posargs)
    session.run("lint-imports")


@nox.session
def minimums(session: nox.Session) -> None:
    """Run the tests on the lowest version of every dependency; needs 8 GB of disk for them."""
    free = shutil.disk_usage(".").free / 1e9
    if free < MINIMUMS_GB:
        session.skip(f"{free:.1f} GB of disk are free here, {MINIMUMS_GB} GB are needed")
    pins = lowest(PROJECT["project"]["dependencies"])
    session.install(*pins, "--editable", ".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure speed and memory on this machine's device."""
    install(session)
    session.run("aam", "bench", *session.posargs)
