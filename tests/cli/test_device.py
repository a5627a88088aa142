"""The device layer through the command line: the doctor, and training that takes what the gates
chose.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch

from aam.cli import main
from aam.device import attention
from aam.device.attention import use_backends
from tests.device.test_attention import break_flash

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
TRITON = "type of variable changes in the loop: int1 re-assigned to int8"
SMALL = ["--embedding-dim=8", "--attention-layers=1", "--attention-heads=2"]
SMALL += ["--epochs=1", "--batch-size=8", "--threads=1"]
DOCTOR = ["doctor", "--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    return simulate_study(samples=20, asvs=60, depth=800)


@pytest.fixture(autouse=True)
def _own_choice(monkeypatch):
    """No back end stays chosen, and the doctor tries no compiler: other tests do."""
    monkeypatch.setattr("aam.api.doctor.probe_run", lambda *_: {})
    yield
    use_backends({})


def pretrain(study: Path, output: Path, *words: str) -> int:
    inputs = f"--table {study}/table.biom --tree {study}/tree.nwk --rarefy-depth 200 --device cpu"
    return main(["pretrain", *inputs.split(), "--output-dir", str(output), *SMALL, *words])


def weights(run: Path) -> bytes:
    return (run / "model" / "weights.safetensors").read_bytes()


# --- the doctor --------------------------------------------------------------------------------


def examined(path: Path, *words: str) -> tuple[int, dict]:
    status = main([*DOCTOR, *words, "--output", str(path)])
    report = json.loads(
        path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON")
    )
    jsonschema.validate(report, json.loads((GOLDEN / "doctor.schema.json").read_text()))
    return status, report


def test_this_machine(tmp_path, capsys):
    status, report = examined(tmp_path / "d.json")
    assert status == report["status"] == 0, report["findings"]
    assert report["platform"]["vendor"] == "CPU"
    assert set(report["attention"]["chosen"].values()) == {"sdpa"}
    for results in report["attention"]["results"].values():
        refused = [name for name, result in results.items() if "refused" in result]
        assert refused == ["mem_efficient"]
    assert report["rates"]["product, float32"] > 1e8
    losses = report["training"]["losses"]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    stdout = capsys.readouterr().out
    assert re.search(r"attention float32, masked +mem_efficient +does not serve it", stdout)
    assert re.search(r"memory +[\d.]+ GB", stdout)
    assert stdout.splitlines()[0].endswith(": nothing is wrong")
    assert stdout.splitlines()[-1].startswith("Next: aam audit --table TABLE")


def test_attention_alone_is_judged_first_and_last(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "cache"))
    assert main([*DOCTOR, "--attention"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch("attention on .+: nothing is wrong", lines[0])
    assert all(line.startswith("attention float32, ") for line in lines[1:-1])
    break_flash(monkeypatch)
    path = tmp_path / "attention.json"
    assert main([*DOCTOR, "--attention", "--output", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": something is wrong")
    assert "wrong: attention flash, float32, masked: is off by" in "\n".join(lines[1:5])
    assert lines[-1] == "Next: mend what is called wrong, then run aam doctor again"
    assert json.loads(path.read_text())["attention"]["chosen"]["float32, masked"] == "math"


def test_a_wrong_back_end_is_named_by_the_doctor_and_avoided_by_training(
    study, tmp_path, monkeypatch, capsys, refused
):
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "cache"))
    break_flash(monkeypatch)
    status, report = examined(tmp_path / "d.json")
    assert status == 1
    assert "wrong: attention flash, float32, masked: is off by" in capsys.readouterr().out
    assert report["attention"]["chosen"] == {"float32, masked": "math", "float32, unmasked": "sdpa"}
    assert pretrain(study, tmp_path / "auto") == 0
    assert "attention, float32, masked: flash is off by" in capsys.readouterr().err
    decided = json.loads((tmp_path / "auto" / "run.json").read_text())["decisions"]
    assert decided["attention"] == report["attention"]["chosen"]
    stderr = refused(pretrain, study, tmp_path / "flash", "--attn-implementation", "flash")
    assert "--attn-implementation flash: float32, masked: is off by" in stderr
    assert "take auto (here math)" in stderr
    assert not (tmp_path / "flash").exists()


def test_bad_options_of_the_doctor(tmp_path, refused):
    assert "--threads is 0" in refused(main, [*DOCTOR[:-1], "0"])
    assert main(["doctor", "--device", "cuda:77" if torch.cuda.is_available() else "cuda"]) == 2


def test_the_old_name_of_the_doctor(plain_python):
    printed = plain_python("""
import runpy, sys
import aam.api.doctor
aam.api.doctor.check_backends = lambda *kinds, refresh: sys.exit(7)
sys.argv = ["x"]
try:
    runpy.run_module("aam.tools.rocm_attention_diagnostic", run_name="__main__")
except SystemExit as stopped:
    print("status", stopped.code)
""")
    assert printed == "status 7\n"


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run aam in a process of its own, without the hook that checks types, which compilers do not
    bear.
    """
    path = f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"
    options = {"env": {**os.environ, "PYTHONPATH": path, **environment}, "text": True}
    return subprocess.run([sys.executable, "-m", "aam", *words], capture_output=True, **options)


def test_a_compiler_that_fails_as_triton_does_falls_back_and_trains_on(study, tmp_path):
    broken = tmp_path / "broken-compiler"
    real = 'case "$1" in --version) exec c++ "$@";; esac'
    broken.write_text(f'#!/bin/sh\n{real}\necho "error: {TRITON}" >&2\nexit 1\n')
    broken.chmod(0o755)
    inputs = f"--table {study}/table.biom --tree {study}/tree.nwk --rarefy-depth 200 --device cpu"
    words = ["pretrain", *inputs.split(), "--output-dir", str(tmp_path / "run"), *SMALL]
    caches = {name: str(tmp_path / name) for name in ("AAM_CACHE", "TORCHINDUCTOR_CACHE_DIR")}
    done = command(*words, "--compile-model", CXX=str(broken), **caches)
    assert done.returncode == 0, done.stderr
    assert "probe: compile-inductor does not work here: " in done.stderr
    assert TRITON in done.stderr
    assert "torch.compile: aot_eager" in done.stderr
    decided = json.loads((tmp_path / "run" / "run.json").read_text())["decisions"]
    assert (decided["compile-aot_eager"]["ok"], decided["compiler"]) == (True, "aot_eager")
    assert pretrain(study, tmp_path / "eager") == 0
    losses = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])["val_loss"]
        for name in ("run", "eager")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


# --- training ----------------------------------------------------------------------------------


def test_math_attention_with_recomputation_trains(study, tmp_path, capsys):
    words = ["--attn-implementation", "math"]
    assert pretrain(study, tmp_path / "kept", *words) == 0
    assert pretrain(study, tmp_path / "again", *words, "--gradient-checkpointing") == 0
    more = ("--gradient-checkpointing", "--asv-chunk-size", "7")
    assert pretrain(study, tmp_path / "chunks", *words, *more) == 0
    assert "different metadata" not in capsys.readouterr().err
    decided = json.loads((tmp_path / "again" / "run.json").read_text())["decisions"]
    assert set(decided["attention"].values()) == {"math"}
    assert weights(tmp_path / "kept") == weights(tmp_path / "again")


def test_a_run_that_goes_on_keeps_its_back_ends_whatever_the_gates_say_now(
    study, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    assert pretrain(study, run) == 0
    (run / "metrics.json").unlink()
    break_flash(monkeypatch)
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "other"))
    assert pretrain(study, run, "--resume-from", "auto") == 0
    assert "attention" not in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    (run / "metrics.json").unlink()
    assert pretrain(study, run, "--resume-from", "auto", "--attn-implementation", "math") == 0
    assert "--attn-implementation was auto and is math" in capsys.readouterr().err


def test_attention_is_not_judged_where_there_is_no_network(study, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "check_backends", lambda *_: pytest.fail("judged"))
    table, run = ["--table", str(study / "table.biom")], tmp_path / "run"
    words = f"--metadata {study}/metadata.tsv --metadata-column ph --rarefy-depth 200"
    words += f" --members presence --output-dir {run}"
    assert main(["train", *table, *words.split()]) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["decisions"] == {}
    model = ["--model", str(tmp_path / "run" / "model")]
    assert main(["predict", *model, *table, "--output", str(tmp_path / "predictions.tsv")]) == 0


def test_damaged_decisions_of_a_run_are_made_again(study, tmp_path):
    run = tmp_path / "run"
    assert pretrain(study, run) == 0
    about = json.loads((run / "run.json").read_text())
    for damage in (3, {"attention": {"float32, masked": "best"}}, {"batch": [2]}):
        is_part = isinstance(damage, dict)
        decisions = {**about["decisions"], **damage} if is_part else damage
        (run / "run.json").write_text(json.dumps({**about, "decisions": decisions}))
        (run / "metrics.json").unlink()
        assert pretrain(study, run, "--resume-from", "auto") == 0


# --- memory ------------------------------------------------------------------------------------


def test_memory_of_every_stage_changes_nothing_but_a_file(study, tmp_path):
    assert pretrain(study, tmp_path / "plain") == 0
    assert pretrain(study, tmp_path / "rate-0.1", "--memory-profile") == 0
    assert weights(tmp_path / "plain") == weights(tmp_path / "rate-0.1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "rate-0.1"]
    report = json.loads((tmp_path / "rate-0.1" / "memory.json").read_text())
    stages = report["stages"]
    assert stages.keys() == {"model creation", "transfer", "forward", "backward", "step", "between"}
    assert 1e7 < min(stages.values()) < max(stages.values()) < report["limit_bytes"]
    before = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert pretrain(study, tmp_path / "plain", "--memory-profile") == 2, "it holds a run"
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == before


def test_memory_of_a_command_without_a_model_has_one_stage(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = ["--table", str(study / "table.biom"), "--tree", str(study / "tree.nwk")]
    words = ["unifrac", *inputs, "--output", "matrix.h5", "--memory-profile"]
    assert main(words) == 0
    report = json.loads((tmp_path / "matrix.memory" / "memory.json").read_text())
    assert report["stages"]["between"] > 1e7
    assert main(words) == 2, "a folder that is there is not written into"


def test_memory_that_is_full_is_said_with_what_to_lower(study, tmp_path, plain_python):
    """The address space is limited for real; the network does not fit into what is left."""
    printed = plain_python(f"""
import contextlib, io, resource, re, pathlib
import torch, aam.api.training
from aam.cli import main
torch.set_num_threads(1)
size = int(re.search(r"VmSize:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + (400 << 20),) * 2)
said = io.StringIO()
with contextlib.redirect_stderr(said):
    status = main(["pretrain", "--table", "{study}/table.biom", "--tree", "{study}/tree.nwk", "--device", "cpu",
                   "--rarefy-depth", "200", "--output-dir", "{tmp_path}/run", "--threads", "1", "--num-workers", "0",
                   "--embedding-dim", "4096", "--batch-size", "16"])
print(status, said.getvalue())
""")
    assert printed.startswith("1 ")
    assert "aam pretrain: memory is full (" in printed
    advice = printed.partition("); ")[2].strip()
    lower = {"lower --token-limit (1024)", "lower --batch-size (16)"}
    more = {"set or lower --asv-chunk-size (None)", "pass --gradient-checkpointing"}
    assert set(advice.split(", or ")) == lower | more
    assert "Traceback" not in printed
