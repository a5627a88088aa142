"""What every test runs under: types checked, no network, one thread per worker, real data when named.

Types and shapes are checked by an import hook, so `aam` must not be imported above the line that installs it,
and what an annotation in `aam` names must be imported at run time, not under ``if TYPE_CHECKING``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

ROOT = Path(__file__).parents[1]
OFFLINE = str(ROOT / "tests" / "offline")

if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"

if OFFLINE not in sys.path:
    sys.path.insert(0, OFFLINE)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (OFFLINE, os.environ.get("PYTHONPATH"))))
    # Some systems have one of their own, loaded already.
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401

install_import_hook("aam", "beartype.beartype")

settings.register_profile("aam", deadline=None, derandomize=True, database=None)
settings.load_profile("aam")


@pytest.fixture(scope="session")
def bench_data() -> Path:
    """Folder of the real studies, one folder each."""
    named = os.environ.get("AAM_BENCH_DATA")
    if not named:
        pytest.skip("AAM_BENCH_DATA is unset: it names the folder that holds the real studies")
    folder = Path(named)
    assert folder.is_dir(), f"AAM_BENCH_DATA={named} is not a folder"
    return folder


@pytest.fixture
def plain_python(tmp_path: Path) -> Callable[[str], str]:
    """Run source text in a fresh interpreter without the type-checking hook; returns what it printed.

    For what the hook would disturb: compiled code, and what happens when a module is first imported.
    """

    def run(source: str) -> str:
        own_warning = "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
        command = [sys.executable, "-W", "error", "-W", own_warning, "-c", source]
        path = os.pathsep.join((str(ROOT), OFFLINE))
        environment = {**os.environ, "PYTHONPATH": path, "HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
