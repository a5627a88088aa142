"""containers/run with a simulated engine: binds, a clean environment, exit statuses and signals."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from containers.lib.enter import inner_environment
from containers.lib.sidecar import Sidecar, write_sidecar

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
        done = script(
            "run", *words, image, "tool", "--x", "a b", FAKE_SHOW="1", **variables, status=0
        )
        return json.loads(done.stdout)

    return run


def bound(words: list[str]) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == "--bind"]


def test_words(enter, image, tmp_path):
    words, _ = enter()
    assert words[:5] == ["exec", "--cleanenv", "--no-eval", "--pwd", str(tmp_path)]
    assert words[-4:] == [str(image), "tool", "--x", "a b"]
    assert bound(words)[0] == str(tmp_path)
    assert not {"--nv", "--rocm", "--contain", "--overlay"} & set(words)


def test_variables_that_are_passed_on_and_others(enter):
    variables = {
        "SLURM_JOB_ID": "7",
        "OMP_NUM_THREADS": "1",
        "RANK": "3",
        "NCCL_DEBUG": "INFO",
        "AAM_X": HOSTILE,
    }
    others = {"PYTHONSTARTUP": "/etc/pythonstart", "LD_LIBRARY_PATH": "/opt/cray", "FOO": "1"}
    _, environment = enter(**variables, **others)
    for prefix in ("APPTAINERENV_", "SINGULARITYENV_"):
        inside = {k.removeprefix(prefix): v for k, v in environment.items() if k.startswith(prefix)}
        assert {k: inside[k] for k in variables} == variables
        assert not set(others) & set(inside)


def test_only_one_name_of_visible_devices_is_kept(enter, image):
    both = {"ROCR_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "3"}
    _, environment = enter(**both)
    assert {k for k in environment if k.startswith("APPTAINERENV_") and "VISIBLE" in k} == {
        "APPTAINERENV_CUDA_VISIBLE_DEVICES"
    }
    inside = inner_environment(both, "rocm", Path("/x"), [])
    assert [name for name in inside if "VISIBLE" in name] == ["ROCR_VISIBLE_DEVICES"]


def test_caches_lie_on_the_local_disk_of_the_job(enter, tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    words, environment = enter(AAM_LOCAL=str(local), SLURM_JOB_ID="42", USER="u")
    for name in (
        "MIOPEN_USER_DB_PATH",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "XDG_CACHE_HOME",
        "TORCH_HOME",
    ):
        assert environment[f"APPTAINERENV_{name}"].startswith(f"{local}/aam-cache-")
        assert Path(environment[f"APPTAINERENV_{name}"]).is_dir()
    assert any("-42" in path for path in bound(words))
    assert str(local) in bound(words)


def test_binds(enter, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    words, _ = enter("--bind", f"{data}:/data:ro", "--nv", "--rocm", AAM_SHARED=str(shared))
    assert {f"{data}:/data:ro", str(shared)} <= set(bound(words))
    assert {"--nv", "--rocm"} <= set(words)


def test_contained(enter):
    words, _ = enter("--contain")
    assert "--contain" in words
    assert any(path.endswith("tmp:/tmp") for path in bound(words)), (
        "the engine's own is 64 MB in memory"
    )
    assert {path for path in ("/dev/kfd", "/dev/dri") if Path(path).exists()} <= set(bound(words))


def test_all_problems_are_in_one_message(script, tmp_path):
    done = script(
        "run",
        "--bind",
        "/no/such",
        "--env",
        "X",
        tmp_path / "no.sif",
        AAM_DATA="/no/data",
        status=2,
    )
    for part in ("COMMAND", "--bind /no/such", "--env X", "AAM_DATA=/no/data", "no such image"):
        assert part in done.stderr


@pytest.mark.parametrize("name", ["a,b", "a:b"])
def test_a_folder_that_no_engine_can_bind(script, image, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    done = script("run", image, "true", cwd=folder, status=2)
    assert "comma or a colon" in done.stderr


def test_a_layer_is_mounted_over_its_base(enter, image):
    fields = dict.fromkeys((field.name for field in dataclasses.fields(Sidecar)), "x")
    fields |= {"layer": {"file": "an image.squashfs"}, "flavour": "rocm"}
    fields |= {"image": {"sha256": "0a1b"}, "git": {"commit": "c0ffee", "dirty": True}}
    write_sidecar(Sidecar(**fields), image)
    image.with_suffix(".squashfs").write_text("")
    words, environment = enter(AAM_IMAGE="another")
    assert words[words.index("--overlay") + 1] == f"{image.with_suffix('.squashfs')}:ro"
    assert environment["APPTAINERENV_AAM_IMAGE"] == "sha256:0a1b", "run.json records the image"
    assert environment["APPTAINERENV_AAM_REVISION"] == "c0ffee+"


@pytest.mark.parametrize("status", [0, 1, 2, 85])
def test_exit_statuses_are_the_commands(script, image, status):
    assert script("run", image, "sh", "-c", f"exit {status}").returncode == status
    assert (
        script("run", "--engine", "none", image, "sh", "-c", f"exit {status}").returncode == status
    )


def test_signals_reach_the_command(engine, image, tmp_path):
    loop = 'trap "exit 85" USR2; touch ready; while :; do sleep 0.05; done'
    command = [sys.executable, str(ROOT / "containers" / "run"), str(image), "sh", "-c", loop]
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PATH": f"{engine}:{os.environ['PATH']}"}
    )
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
    assert inside["GIVEN"] == HOSTILE
    assert inside["OMP_NUM_THREADS"] == "3"
    assert inside["PYTHONNOUSERSITE"] == "1"
    assert "PYTHONSTARTUP" not in inside


def test_print_shows_and_runs_nothing(script, image, tmp_path):
    done = script("run", "--print", image, "touch", "made", OMP_NUM_THREADS="2", status=0)
    assert "APPTAINERENV_OMP_NUM_THREADS=2" in done.stdout
    assert done.stdout.strip().endswith("touch made")
    assert not (tmp_path / "made").exists()
