"""containers/run with a simulated engine: binds, a clean environment, exit statuses and signals;
containers/test: what is copied, which tests count as run, and refusals.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from containers.lib import image_tests
from containers.lib.enter import inner_environment
from containers.lib.wheels import source_digest
from containers.tests.conftest import record
from tests.programs import absent, run_program, write_program

ROOT = Path(__file__).parents[2]
HOSTILE = "a b\"c$(touch x)`y` 'z'\n*\\n;,"


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "an image.sif"
    path.write_text("")
    return path


@pytest.fixture
def enter(script, image):
    """Returns the words and the environment that the engine is called with."""

    def run(*words, **variables):
        command = [image, "tool", "--x", "a b"]
        done = script("run", *words, *command, FAKE_SHOW="1", **variables, status=0)
        return json.loads(done.stdout)

    return run


def bound(words: list[str]) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == "--bind"]


def test_words_and_binds(enter, image, tmp_path):
    words, _ = enter()
    assert words[:5] == ["exec", "--cleanenv", "--no-eval", "--pwd", str(tmp_path)]
    assert words[-4:] == [str(image), "tool", "--x", "a b"]
    assert bound(words)[0] == str(tmp_path)
    assert not {"--nv", "--rocm", "--contain", "--overlay"} & set(words)
    data, shared = tmp_path / "data", tmp_path / "shared"
    data.mkdir()
    shared.mkdir()
    words, _ = enter("--bind", f"{data}:/data:ro", "--nv", "--rocm", AAM_SHARED=str(shared))
    assert {f"{data}:/data:ro", str(shared)} <= set(bound(words))
    assert {"--nv", "--rocm"} <= set(words)
    words, _ = enter("--contain")
    assert "--contain" in words
    # The engine's own /tmp is 64 MB in memory.
    assert any(path.endswith("tmp:/tmp") for path in bound(words))
    assert {path for path in ("/dev/kfd", "/dev/dri") if Path(path).exists()} <= set(bound(words))


def test_variables_that_are_passed_on_and_others(enter):
    variables = {"SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "1", "RANK": "3", "NCCL_DEBUG": "INFO"}
    variables["AAM_X"] = HOSTILE
    # What one sets on the first day of a machine, to find out what fails there.
    debugging = "TORCHINDUCTOR_MAX_AUTOTUNE TORCHDYNAMO_VERBOSE HIP_LAUNCH_BLOCKING AMD_LOG_LEVEL"
    debugging += " GPU_MAX_HW_QUEUES ROCBLAS_LAYER HIPBLASLT_LOG_LEVEL MIOPEN_ENABLE_LOGGING"
    debugging += " AMD_SERIALIZE_KERNEL CUDA_LAUNCH_BLOCKING TORCH_LOGS TRITON_DEBUG"
    variables |= dict.fromkeys(debugging.split(), "1")
    others = {"PYTHONSTARTUP": "/etc/pythonstart", "LD_LIBRARY_PATH": "/opt/cray", "FOO": "1"}
    _, environment = enter(**variables, **others)
    for prefix in ("APPTAINERENV_", "SINGULARITYENV_"):
        inside = {k.removeprefix(prefix): v for k, v in environment.items() if k.startswith(prefix)}
        assert {k: inside[k] for k in variables} == variables
        assert not set(others) & set(inside)


def test_only_one_name_of_visible_devices_is_kept(enter):
    given = {"ROCR_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "3"}
    _, environment = enter(**given)
    kept = {k for k in environment if k.startswith("APPTAINERENV_") and "VISIBLE" in k}
    assert kept == {"APPTAINERENV_CUDA_VISIBLE_DEVICES"}
    inside = inner_environment(given, "rocm", Path("/x"), [])
    assert [name for name in inside if "VISIBLE" in name] == ["ROCR_VISIBLE_DEVICES"]


def test_caches_lie_on_the_local_disk_of_the_job(enter, tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    words, environment = enter(AAM_LOCAL=str(local), SLURM_JOB_ID="42", USER="u")
    names = "MIOPEN_USER_DB_PATH TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR XDG_CACHE_HOME TORCH_HOME"
    for name in names.split():
        assert environment[f"APPTAINERENV_{name}"].startswith(f"{local}/aam-cache-")
        assert Path(environment[f"APPTAINERENV_{name}"]).is_dir()
    assert any("-42" in path for path in bound(words))
    assert str(local) in bound(words)


def test_what_compilers_made_lies_on_shared_storage(enter, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    words, environment = enter(AAM_SHARED=str(shared))
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert environment[f"APPTAINERENV_{name}"].startswith(f"{shared}/aam-cache/")
    assert str(shared) not in environment["APPTAINERENV_MIOPEN_USER_DB_PATH"]
    other = tmp_path / "other"
    words, environment = enter(AAM_SHARED=str(shared), AAM_CACHE=str(other))
    assert environment["APPTAINERENV_TRITON_CACHE_DIR"] == f"{other}/triton"
    assert str(other) in bound(words)


def test_all_problems_are_in_one_message(script, image, tmp_path):
    words = ("--bind", "/no/such", "--env", "X", tmp_path / "no.sif")
    done = script("run", *words, AAM_DATA="/no/data", status=2)
    parts = ("COMMAND", "--bind /no/such", "--env X", "AAM_DATA=/no/data", "no such image")
    assert absent(done.stderr, *parts) == []
    for name in ("a,b", "a:b"):
        (tmp_path / name).mkdir()
        done = script("run", image, "true", cwd=tmp_path / name, status=2)
        assert "comma or a colon" in done.stderr


def test_a_layer_is_mounted_over_its_base(enter, image):
    git = {"commit": "c0ffee", "dirty": True}
    record(image, layer={"file": "an image.squashfs"}, git=git, image={"sha256": "0a1b"})
    image.with_suffix(".squashfs").write_text("")
    words, environment = enter(AAM_IMAGE="another")
    assert words[words.index("--overlay") + 1] == f"{image.with_suffix('.squashfs')}:ro"
    assert environment["APPTAINERENV_AAM_IMAGE"] == "sha256:0a1b", "run.json records the image"
    assert environment["APPTAINERENV_AAM_REVISION"] == "c0ffee+"


@pytest.mark.parametrize("engine_words", [[], ["--engine", "none"]])
def test_exit_statuses_are_the_commands(script, image, engine_words):
    for status in (0, 85):
        done = script("run", *engine_words, image, "sh", "-c", f"exit {status}", status=status)
        assert done.returncode == status


def test_signals_reach_the_command(engine, image, tmp_path):
    loop = 'trap "exit 85" USR2; touch ready; while :; do sleep 0.05; done'
    command = [sys.executable, str(ROOT / "containers" / "run"), str(image), "sh", "-c", loop]
    environment = {**os.environ, "PATH": f"{engine}:{os.environ['PATH']}"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment)
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(timeout=30) == 85


def test_without_a_container(script, image):
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    words = ["--engine", "none", "--env", f"GIVEN={HOSTILE}", image, sys.executable, "-c", show]
    done = script("run", *words, PYTHONSTARTUP="/x", OMP_NUM_THREADS="3")
    inside = json.loads(done.stdout)
    assert (inside["GIVEN"], inside["OMP_NUM_THREADS"]) == (HOSTILE, "3")
    assert inside["PYTHONNOUSERSITE"] == "1"
    assert "PYTHONSTARTUP" not in inside


def test_print_shows_and_runs_nothing(script, image, tmp_path):
    done = script("run", "--print", image, "touch", "made", OMP_NUM_THREADS="2", status=0)
    assert "APPTAINERENV_OMP_NUM_THREADS=2" in done.stdout
    assert done.stdout.strip().endswith("touch made")
    assert not (tmp_path / "made").exists()


# --- containers/test ---------------------------------------------------------------------------

JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.device.test_device" name="test_gpu[float32]"/>
<testcase classname="tests.device.test_device" name="test_gpu[bfloat16]"><skipped message="no"/></testcase>
<testcase classname="tests.device.test_device.TestGpu" name="test_speed"/>
</testsuite></testsuites>"""


def test_every_gpu_test_must_have_run(tmp_path):
    junit = tmp_path / "junit.xml"
    junit.write_text(JUNIT)
    module = "tests/device/test_device.py"
    executed = {f"{module}::test_gpu[float32]", f"{module}::TestGpu::test_speed"}
    assert image_tests.missing_tests(executed, junit) == []
    missing = {f"{module}::test_gpu[bfloat16]", "tests/test_x.py::test_never_collected"}
    assert image_tests.missing_tests(executed | missing, junit) == sorted(missing)


def test_the_copy_holds_the_tests_and_no_images(tmp_path):
    image_tests.copy_sources(tmp_path, image_tests.INSTALLED)
    assert not (tmp_path / "aam").exists(), "the image's own aam is imported"
    assert (tmp_path / "conftest.py").exists()
    assert (tmp_path / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()
    assert [path.name for path in tmp_path.rglob("*.sif")] == []
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("has_image", [False, True])
def test_image_and_controller_are_checked_before_a_node_is_asked_for(
    tmp_path, monkeypatch, has_image
):
    """On a login node whose controller of SLURM does not answer."""
    write_program(tmp_path / "bin" / "srun", f"touch {tmp_path}/called")
    write_program(tmp_path / "bin" / "scontrol", "echo 'Slurmctld(primary) at cosmos is DOWN'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    image = tmp_path / "image.sif"
    if has_image:
        image.touch()
        record(image, aam_sha256=source_digest())
    words = ("-m", "nox", "-s", "test_rocm", "--", "--image", image)
    done = run_program(sys.executable, *words, cwd=ROOT, status=1)
    printed = done.stdout + done.stderr
    assert not (tmp_path / "called").exists(), "no node is asked for"
    controller = "no controller of SLURM answers (scontrol ping: Slurmctld(primary) at cosmos"
    said = (controller, "nox -s test_rocm -- --no-gpu")
    missing = ("image.sif: is missing; make container-rocm builds it",)
    assert absent(printed, *(said if has_image else missing)) == []
