"""The source distribution, the wheel made from it, its programs where nothing else is installed,
and what a release states in several places.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from containers.lib import release
from containers.lib.files import changed_files, revision
from containers.lib.wheels import build_wheel, isolation_options
from tests.programs import absent, run_program

ROOT = Path(__file__).parents[2]
BUNDLED = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def run(*words: object, cwd: Path, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), **variables}
    return run_program(*words, cwd=cwd, env=environment).stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with the sources, what git does not keep left out, the source distribution and the
    wheel, unpacked.
    """
    if not isolation_options():
        pytest.skip("no setuptools that builds the package is installed; make setup installs one")
    folder = tmp_path_factory.mktemp("packages")
    archive = release.make_sdist(folder)
    # The first releases of Python 3.11, as in Debian 12, know no filters.
    filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    shutil.unpack_archive(archive, folder / "sdist", **filters)
    zipfile.ZipFile(build_wheel(archive, folder)).extractall(folder / "installed")
    return folder


def files(folder: Path) -> set[str]:
    """Return the files of a folder but for bytecode."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)) for path in found}


def test_sources_in_the_source_distribution_and_programs_in_the_wheel(packages):
    (unpacked,) = (packages / "sdist").iterdir()
    made = re.compile(r"PKG-INFO|setup.cfg|attention_all_microbes.egg-info/.*|\..*")
    kept, sources = (
        {name for name in files(folder) if not made.fullmatch(name)}
        for folder in (unpacked, packages / "sources")
    )
    assert kept == sources
    tests = ("containers/tests/", "slurm/tests/")
    bundled = {name for name in sources if name.startswith(("containers/", "slurm/"))}
    bundled = {name for name in bundled if not name.startswith(tests)}
    expected = {name for name in sources if name.startswith("aam/")}
    expected |= {f"aam/bundled/{name}" for name in (*bundled, *BUNDLED)}
    found = {name for name in files(packages / "installed") if ".dist-info/" not in name}
    assert found - {"aam/bundled/commit"} == expected


def test_version_of_a_wheel_names_its_commit_and_torch(packages, aam):
    shown, commit = aam("--version"), revision()[0]
    if (ROOT / ".git").exists():
        assert f"(commit {commit}" in shown
    assert shown.startswith(f"aam {release.version()} (commit ")
    assert shown.endswith(", no torch)\n")


@pytest.fixture
def aam(packages, tmp_path):
    """Runs a command of the unpacked wheel, without any other package, in the folder of the
    test.
    """

    def run_aam(*words: object, **variables: str) -> str:
        variables["PYTHONPATH"] = str(packages / "installed")
        return run(sys.executable, "-S", "-m", "aam", *words, cwd=tmp_path, **variables)

    return run_aam


def test_job_scripts_of_an_installed_aam(aam, packages, tmp_path):
    (tmp_path / "table.biom").write_text("x")
    (tmp_path / "my.sif").write_text("x")
    (tmp_path / "shared").mkdir()
    site = {"SHARED": str(tmp_path / "shared"), "LOCAL": "/local/{job}", "PARTITION": "batch"}
    site |= {"MAX_HOURS": "12", "MAX_NODES": "1", "ACCOUNT": "none", "GRES": "none"}
    site = {"AAM_SITE": "generic"} | {f"AAM_SITE_{key}": value for key, value in site.items()}
    job = ("slurm", "pretrain_single")
    script = aam(*job, "--image", "my.sif", "--", "--table", "table.biom", **site)
    assert f"AAM={packages}/installed/aam/bundled\n" in script
    assert (packages / "installed/aam/bundled/containers/run").is_file(), "which the script calls"
    assert f"IMAGE={tmp_path}/my.sif\n" in script
    script = aam(*job, "--engine", "none", "--", "--table", "table.biom", **site)
    assert f"COMMAND=(\n    {sys.executable} -m aam pretrain\n" in script
    assert "PYTHONPATH" not in script


def test_images_of_an_installed_aam(aam, packages, tmp_path, engine):
    assert "--print" in aam("image", "run", "--help")
    assert "COPY containers/lock/cpu.txt /opt/aam/lock.txt" in aam("image", "oci", "cpu", "--print")
    base = tmp_path / "base"
    base.mkdir()
    words = ["image", "cpu", "--base", base, "--route", "definition"]
    installed = {"PYTHONPATH": f"{packages}/installed", "AAM_SCRATCH": f"{tmp_path}/scratch"}
    command = [sys.executable, "-m", "aam", *words, "--engine", engine / "apptainer"]
    run(*command, cwd=tmp_path, **installed)
    assert (tmp_path / "containers" / "aam-cpu.sif").read_text() == "complete"
    # The sources that go into the image are those of the wheel; a checkout adds the plugin.
    copy = "import sys; from pathlib import Path; sys.path[:0] = sys.argv[1].split(':');"
    copy += "from containers.lib.wheels import copy_sources; copy_sources(Path(sys.argv[2]))"
    roots = {"installed": f"{packages}/installed:{packages}/installed/aam/bundled", "own": ROOT}
    for name, root in roots.items():
        run(sys.executable, "-S", "-c", copy, root, tmp_path / name, cwd=tmp_path)
    own, copied = files(tmp_path / "own"), files(tmp_path / "installed")
    assert {name for name in own if not name.startswith("plugins/")} == copied - {"commit"}


def test_a_release_is_refused_with_all_its_problems(tmp_path):
    assert release.version_problems() == []
    for name in (*release.STATED, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "CITATION.cff").write_text("version: 0.0.9\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.0.9] - unreleased\n")
    dated = f"expected '## [{release.version()}] - YYYY-MM-DD'"
    problems = "\n".join(release.release_problems(tmp_path))
    assert absent(problems, "CITATION.cff: states the versions ['0.0.9']", dated) == []


def test_the_digests_of_a_release_are_those_that_sha256sum_checks(tmp_path):
    paths = [tmp_path / name for name in ("b.whl", "a.tar.gz")]
    for path in paths:
        path.write_text(path.name)
    sums = release.write_digests(paths)
    run_program("sha256sum", "--check", "--strict", sums.name, cwd=tmp_path)
    assert [line.split()[1] for line in sums.read_text().splitlines()] == ["a.tar.gz", "b.whl"]


@pytest.mark.skipif(shutil.which("git") is None, reason="no git is installed, as in an image")
def test_files_that_differ_from_the_commit_are_named(tmp_path):
    for name in (*release.STATED, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "kept").write_text("1")
    for words in ("init --quiet", "add .", "commit --quiet -m first"):
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        run_program("git", *author, *words.split(), cwd=tmp_path)
    assert changed_files(tmp_path) == []
    (tmp_path / "kept").write_text("2")
    (tmp_path / "new").write_text("3")
    assert changed_files(tmp_path) == ["kept", "new"]
    expected = "git: 'kept', 'new' differ from the commit or are new; commit them first"
    assert expected in release.release_problems(tmp_path)
