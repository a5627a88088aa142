"""What every test runs under: types checked, no network, one thread per worker, real data when
named.

Types and shapes are checked by an import hook, so `aam` must not be imported above the line that
installs it, and what an annotation in `aam` names must be imported at run time, not under ``if
TYPE_CHECKING``. Shapes come from `aam.device.shapes`, which takes jaxtyping's because jaxtyping is
imported here before `aam`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

from tests.programs import run_program, with_sources

ROOT = Path(__file__).parent
OFFLINE = str(ROOT / "tests" / "offline")

# Those of this process; none where the system does not say.
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

if "PYTEST_XDIST_WORKER" in os.environ:
    libraries = ("OMP", "MKL", "OPENBLAS")
    os.environ.update({f"{name}_NUM_THREADS": "1" for name in libraries})

if OFFLINE not in sys.path:
    sys.path.insert(0, OFFLINE)
    paths = (OFFLINE, os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # Some systems have one of their own, loaded already.
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401

# Where tensors have shapes; other modules run as they are.
SHAPED = ["aam.data.batch", "aam.data.loader", "aam.model", "aam.training.losses"]
install_import_hook(SHAPED, "beartype.beartype")

settings.register_profile("aam", deadline=None, derandomize=True, database=None)
settings.load_profile("aam")


# What these test is not in an image: the building of images, job scripts, pages, the code's style.
SOURCES = ("containers", "slurm", "tests/docs", "tests/test_architecture.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the sources of this repository."""
    for item in items:
        if any(item.path.is_relative_to(ROOT / source) for source in SOURCES):
            item.add_marker(pytest.mark.sources)


def pytest_collection_finish() -> None:
    """What is imported and collected stays until the end: the garbage collector need not look at it
    again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests find out of this machine is kept among temporary files, and nothing waits until a
    disk has it.
    """
    os.environ["AAM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.fsync = lambda descriptor: None


@pytest.fixture(autouse=True)
def _one_core(request: pytest.FixtureRequest) -> Iterator[None]:
    """A worker runs fast tests on a core of its own, which commands and processes take for the only
    one.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    slow = any(map(request.node.get_closest_marker, ("slow", "gpu", "cluster")))
    if worker and CORES:
        own = {CORES[int(worker.removeprefix("gw")) % len(CORES)]}
        os.sched_setaffinity(0, CORES if slow else own)
    yield
    # Threads of torch that one test starts make all tests after it slow, by up to ten times.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def every_core() -> None:
    """For tests of threads: the cores that there are, in a worker too."""
    if CORES:
        os.sched_setaffinity(0, CORES)


@pytest.fixture(scope="session")
def bench_data() -> Path:
    """Folder of the real studies, one folder each."""
    named = os.environ.get("AAM_BENCH_DATA")
    if not named:
        pytest.skip("AAM_BENCH_DATA is unset: it names the folder that holds the real studies")
    folder = Path(named)
    assert folder.is_dir(), f"AAM_BENCH_DATA={named} is not a folder"
    return folder


@pytest.fixture(scope="session")
def study_of() -> Callable[..., Any]:
    """Makes a `Study` in memory from dense counts [N, F]."""
    from tests.data.studies import make_study

    return make_study


@pytest.fixture(scope="session")
def tiny() -> Callable[..., dict[str, Any]]:
    """Makes the arguments of `study_of`: sparse counts of at least 40 reads a sample, random ASVs,
    a tree.
    """
    from tests.data.studies import random_counts

    return random_counts


@pytest.fixture
def study(study_of, tiny) -> Any:
    """Nine samples of 24 ASVs, with a tree, where a test module has no study of its own."""
    return study_of(**tiny())


@pytest.fixture(scope="session")
def model_of() -> Callable[..., Any]:
    """Makes a small network whose weights are so large that every input shows in every output."""
    import torch

    from aam.config import ModelConfig
    from aam.model.aam import Aam, HeadConfig

    def make(heads=None, *, depth=40, seed=0, noise=0.2, reference_width=0, **sizes) -> Aam:
        sizes = {"embedding_dim": 16, "attention_heads": 2, "max_bp": 30, **sizes}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = Aam(ModelConfig(**sizes), depth, heads or HeadConfig(), reference_width)
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter += noise * torch.randn_like(parameter)
        return network.eval()

    return make


@pytest.fixture(scope="session")
def simulate_study(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a folder with a simulated study, alone in a folder of its own."""
    from aam.data.simulate import simulate

    def make(name: str = "study", **sizes: int) -> Path:
        folder = tmp_path_factory.mktemp("simulated") / name
        simulate(folder, **{"samples": 60, "asvs": 80, "length": 50, "depth": 1500, **sizes})
        return folder

    return make


@pytest.fixture(scope="session")
def small_pretraining() -> Callable[..., Any]:
    """Makes the options of a small network that is pretrained on a simulated study, of the sizes
    and options given.
    """
    from aam.config import DataConfig, ModelConfig, PretrainConfig, TrainConfig
    from aam.options import RunConfig

    def make(study: Path, sizes: dict[str, Any], **train: Any) -> PretrainConfig:
        return PretrainConfig(
            data=DataConfig(table=study / "table.biom", tree=study / "tree.nwk"),
            model=ModelConfig(embedding_dim=16, attention_heads=2, **sizes),
            train=TrainConfig(**train),
            runtime=RunConfig(device="cpu", threads=1),
        )

    return make


@pytest.fixture(scope="module")
def quick_baselines() -> Iterator[None]:
    """Reports without strong baselines, and trivial ones with few trees: both take longest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aam.predict.baselines.MOST_BASELINE_ROWS", 0)
        patch.setattr("aam.predict.baselines.TREES", 5)
        yield


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Gives what is said by a command, or by a function that calls one, which must end with status
    2.
    """

    def said(command: Callable[..., int], *arguments: Any, **options: Any) -> str:
        capsys.readouterr()
        assert command(*arguments, **options) == 2
        return capsys.readouterr().err

    return said


@pytest.fixture
def plain_python(tmp_path: Path) -> Callable[[str], str]:
    """Run source text in a fresh interpreter without the type-checking hook; returns what it
    printed.

    For what the hook would disturb: compiled code, and what happens when a module is first
    imported.
    """

    def run(source: str) -> str:
        ignored = "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
        path = os.pathsep.join((str(ROOT), OFFLINE))
        environment = {**os.environ, "PYTHONPATH": path, "HOME": str(tmp_path)}
        words = ("-W", "error", "-W", ignored, "-c", source)
        return run_program(sys.executable, *words, cwd=tmp_path, env=environment).stdout

    return run


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., list[str]]:
    """Runs ``python WORDS`` on ranks of one thread each, which must end with a status; returns what
    each printed.
    """
    from aam.device.distributed import rank_environment

    def run(size: int, *words: object, status: int = 0) -> list[str]:
        path = with_sources()["PYTHONPATH"]
        shared = {**rank_environment(size), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [sys.executable, *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        numbers = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size))
        ranks = [
            subprocess.Popen(command, env=shared | number, text=True, **pipes) for number in numbers
        ]
        printed = [rank.communicate(timeout=300) for rank in ranks]
        errors = "".join(error[-3000:] for _, error in printed)
        assert [rank.returncode for rank in ranks] == [status] * size, errors
        return [output for output, _ in printed]

    return run


@pytest.fixture(scope="session")
def said_by_processes() -> Callable[[], bytes]:
    """Gives the command lines of all processes of this machine; those that end meanwhile say
    nothing.
    """

    def read() -> bytes:
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                lines.append(path.read_bytes())
        return b"\n".join(lines)

    return read
