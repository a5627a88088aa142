"""The source distribution, the wheel made from it, and the programs in the wheel where nothing else
is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from containers.lib.release import make_sdist
from containers.lib.wheels import build_wheel, isolation_options

ROOT = Path(__file__).parents[2]
BUNDLED = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def run(*words: object, cwd: Path, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), **variables}
    command = list(map(str, words))
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with the sources, what git does not keep left out, the source distribution and the
    wheel, unpacked.
    """
    if not isolation_options():
        pytest.skip("no setuptools that builds the package is installed; make setup installs one")
    folder = tmp_path_factory.mktemp("packages")
    archive = make_sdist(folder)
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
    bundled = {name for name in sources if name.startswith(("containers/", "slurm/"))}
    expected = {name for name in sources if name.startswith("aam/")}
    expected |= {f"aam/bundled/{name}" for name in (*bundled, *BUNDLED)}
    assert {name for name in files(packages / "installed") if ".dist-info/" not in name} == expected


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
    # pip and setuptools make the wheel that goes into the image.
    installed = {"PYTHONPATH": f"{packages}/installed", "AAM_SCRATCH": f"{tmp_path}/scratch"}
    command = [sys.executable, "-m", "aam", *words, "--engine", engine / "apptainer"]
    run(*command, cwd=tmp_path, **installed)
    assert (tmp_path / "containers" / "aam-cpu.sif").read_text() == "complete"
    (first,), (second,) = packages.glob("*.whl"), (tmp_path / "dist").glob("*.whl")
    sums = [
        {(f.filename, f.CRC) for f in zipfile.ZipFile(path).infolist()} for path in (first, second)
    ]
    assert sums[0] == sums[1], "an installed aam makes the wheel that it came from"
