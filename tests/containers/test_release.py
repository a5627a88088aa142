"""What a release states in several places agrees: the version, the conda recipe, and the lock of
`make release`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from containers.lib import release
from containers.lib.git import changed_files, revision

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = ROOT / "containers" / "conda" / "recipe.yaml"
# Names on conda-forge that differ from those of Python's index.
CONDA_NAMES = {"torch": "pytorch"}


def listed(part: str) -> set[str]:
    """The items of a list of the recipe."""
    (block,) = re.findall(rf"(?m)^  {part}:\n((?:    .*\n)+)", RECIPE.read_text())
    return set(re.findall(r"(?m)^    - (.+)$", block))


def test_the_conda_recipe_asks_for_what_the_project_asks_for():
    requirements = [Requirement(line) for line in PROJECT["dependencies"]]
    named = {f"{CONDA_NAMES.get(each.name, each.name)} {each.specifier}" for each in requirements}
    python = f"python {PROJECT['requires-python']}"
    assert listed("run") == named | {python}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert listed("host") == {python, "pip", *(re.sub(">=", " >=", line) for line in build)}
    text = RECIPE.read_text()
    assert f"- aam = {PROJECT['scripts']['aam']}\n" in text
    assert f'summary: "{PROJECT["description"]}"\n' in text
    assert f"license: {PROJECT['license']}\n" in text


def test_the_commands_that_the_conda_recipe_tests_run(tmp_path, monkeypatch):
    commands = re.findall(r"(?m)^      - (?:python -m )?(aam[^=\n]*)$", RECIPE.read_text())
    assert len(commands) == 4
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = [sys.executable, "-m", *command.split()]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_version_stands_everywhere_as_in_the_package():
    assert release.version_problems() == []


def test_a_release_is_refused_with_all_its_problems(tmp_path, monkeypatch):
    for name in (*release.STATED, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "CITATION.cff").write_text("version: 0.0.9\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.0.9] - unreleased\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    problems = "\n".join(release.release_problems())
    assert "CITATION.cff: states the versions ['0.0.9']" in problems
    assert f"expected '## [{release.version()}] - YYYY-MM-DD'" in problems


@pytest.mark.skipif(shutil.which("git") is None, reason="no git is installed, as in an image")
def test_files_that_differ_from_the_commit_are_named(tmp_path, monkeypatch):
    def git(*words: str) -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(command, cwd=tmp_path, check=True)

    git("init", "--quiet")
    (tmp_path / "kept").write_text("1")
    git("add", "kept")
    git("commit", "--quiet", "-m", "first")
    assert changed_files(tmp_path) == []
    (tmp_path / "kept").write_text("2")
    (tmp_path / "new").write_text("3")
    assert changed_files(tmp_path) == ["kept", "new"]
    monkeypatch.setattr(release, "changed_files", lambda: changed_files(tmp_path))
    monkeypatch.setattr(release, "revision", lambda: revision(tmp_path))
    expected = "git: 'kept', 'new' differ from the commit or are new; commit them first"
    assert expected in release.release_problems()
