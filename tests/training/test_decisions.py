"""Decisions of a run: batch sizes that fit, and compilers that work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aam.cli import main
from aam.config import DataConfig, PretrainConfig, TrainConfig
from aam.device.measure import memory_limit, resident_memory
from aam.device.probe import ProbeSpec, Verdict, try_now
from aam.engine import step as steps_module
from aam.errors import RunError
from aam.options import RunConfig
from aam.training import decisions
from aam.training.decisions import (
    COMPILERS,
    PretrainingSteps,
    choose_batch_size,
    decide_steps,
    largest_fitting_batch,
    make_steps,
    step_spec,
)
from aam.training.pretrain import follow_decisions
from tests.engine.conftest import same
from tests.engine.test_step import snapshot

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    return simulate_study(samples=40, depth=2000)


@pytest.fixture
def steps(study, small_pretraining) -> PretrainingSteps:
    return make_steps(small_pretraining(study, {"attention_layers": 1}, batch_size=8))


# --- the largest batch -------------------------------------------------------------------------


def test_the_largest_batch_is_at_most_all_samples(steps, monkeypatch):
    """Memory is simulated: 1,000 bytes and 100 for each sample, above what the process holds."""
    base = resident_memory()
    monkeypatch.setattr(steps_module, "resident_memory", lambda: base)
    monkeypatch.setattr(decisions, "_epoch_peak", lambda steps, size: base + 1000 + 100 * size)
    assert 22 <= max(largest_fitting_batch(steps, base + 1000 + 100 * 23)) <= 23
    assert max(largest_fitting_batch(steps, base + 10**9)) == 36, "all samples there are"
    assert max(largest_fitting_batch(steps, base + 10**9, max_size=12)) == 12
    with pytest.raises(RunError, match=r"not even one sample fits into .*; lower --asv-chunk-size"):
        largest_fitting_batch(steps, base + 1050)


def test_real_steps_are_measured(steps):
    before = snapshot(steps)
    fits = largest_fitting_batch(steps, memory_limit(CPU, 1.0), max_size=4)
    assert list(fits) == [1, 2, 4]
    assert all(peak > 1e7 for peak in fits.values())
    assert same(before, snapshot(steps))


def test_the_effective_batch_is_kept(steps, monkeypatch):
    def sizes(fitting: int, **options: int) -> tuple[int, ...]:
        monkeypatch.setattr(decisions, "largest_fitting_batch", lambda *_: [fitting])
        config = PretrainConfig(train=TrainConfig(**{"batch_size": "auto", **options}))
        return tuple(choose_batch_size(config, steps.loader.study, CPU, {}).values())

    assert sizes(3, batch_size=7) == (7, 1)
    assert sizes(1000) == (64, 1)
    assert sizes(50) == (32, 2)
    assert sizes(36) == (64, 1), "all samples there are"
    assert sizes(50, gradient_accumulation_steps=3) == (48, 4)


def test_training_with_a_chosen_batch_size(study, tmp_path, capsys, refused, monkeypatch):
    monkeypatch.setattr(decisions, "_epoch_peak", lambda steps, size: 10**15 if size > 4 else 1)
    inputs = f"--table {study}/table.biom --tree {study}/tree.nwk --output-dir {tmp_path}/run"
    sizes = "--embedding-dim 8 --attention-layers 1 --attention-heads 2 --batch-size auto"
    words = f"pretrain {inputs} {sizes} --epochs 1 --threads 1 --device cpu".split()
    assert main(words) == 0
    assert "batches of 4, 16 for each step of 64 samples" in capsys.readouterr().err
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["decisions"]["batch"] == {"batch_size": 4, "gradient_accumulation_steps": 16}
    assert about["config"]["train"]["batch_size"] == 4
    (tmp_path / "run" / "metrics.json").unlink()
    monkeypatch.setattr(decisions, "_epoch_peak", lambda *_: pytest.fail("searched again"))
    assert main([*words, "--resume-from", "auto"]) == 0
    stderr = refused(main, [*words, "--resume-from", "auto", "--batch-size=8"])
    assert "--batch-size was 4 and is 8" in stderr


# --- the fixed network -------------------------------------------------------------------------


@pytest.mark.gpu
def test_losses_on_a_gpu_are_those_of_the_cpu(study):
    data = DataConfig(table=study / "table.biom", tree=study / "tree.nwk")
    config, losses = PretrainConfig(data=data, train=TrainConfig(batch_size=16)), []
    for device in ("cpu", "cuda"):
        runtime = RunConfig(device=device, mixed_precision="none")
        steps = make_steps(replace(config, runtime=runtime))
        steps.take(50, 0)
        losses.append([float(loss) for loss in steps.losses])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


# --- what the probe says of a run ----------------------------------------------------------------

CUDA = torch.device("cuda")
MACHINE = {"device": "AMD Instinct MI300A", "driver": "amdgpu 6.10", "torch": "2.7.1"}


@pytest.fixture
def tried(monkeypatch) -> dict[str, ProbeSpec]:
    """What the probe was asked for by name; graphs and inductor fail."""
    specs: dict[str, ProbeSpec] = {}

    def verdict(name, spec):
        specs[name] = spec
        fails = name in ("capture", "compile-inductor")
        return Verdict(not fails, "its process ended with SIGSEGV" if fails else "4", {}, 1.25)

    monkeypatch.setattr(decisions, "verdict", verdict)
    monkeypatch.setattr(decisions, "machine_facts", lambda device: MACHINE)
    return specs


def pretraining(**runtime) -> PretrainConfig:
    return PretrainConfig(runtime=RunConfig(**runtime))


@pytest.mark.parametrize(
    ("config", "device", "names"),
    [
        (pretraining(), CPU, []),
        (pretraining(compile_model=True), CPU, [*COMPILERS]),
        (pretraining(), CUDA, ["workers", "capture"]),
        (pretraining(no_capture=True), CUDA, ["workers"]),
        (pretraining(mixed_precision="fp16", compile_model=True), CUDA, ["workers", *COMPILERS]),
        (PretrainConfig(train=TrainConfig(gradient_accumulation_steps=2)), CUDA, ["workers"]),
    ],
)
def test_what_a_run_does_not_do_is_not_tried(config, device, names):
    assert decisions.probed_names(config, device) == names


def test_a_run_follows_the_probe(steps, tried):
    config = pretraining(compile_model=True, output_dir=Path("run"), seed=7)
    facts = decide_steps(config, steps.loader.study, CUDA, {})
    refused = {"ok": False, "reason": "its process ended with SIGSEGV", "seconds": 1.2}
    assert facts["capture"] == refused
    assert facts["workers"]["ok"]
    assert (facts["compile-inductor"]["ok"], facts["compiler"]) == (False, "aot_eager")
    assert facts["machine"] == MACHINE
    # Without graphs, a compiler is tried without them.
    assert tried["compile-aot_eager"].options["captured"] is False
    assert tried["capture"].options["captured"] is True
    compiled = []
    steps.task.compile_losses = compiled.append
    follow_decisions(steps.task, facts)
    assert compiled == ["aot_eager"]
    assert steps.task.falls_back
    assert "SIGSEGV" in steps.task.refusal
    follow_decisions(steps.task, {**facts, "workers": refused})
    assert steps.task.train.workers == 0


def test_only_what_changes_a_step_makes_another_question(steps, tried):
    def question(**changes):
        decide_steps(pretraining(**changes), steps.loader.study, CUDA, {})
        return json.dumps(tried["capture"].options)

    usual = question()
    assert usual == question(seed=3, output_dir=Path("other"), resume_from="auto", threads=None)
    for change in ({"asv_chunk_size": 50}, {"gradient_checkpointing": True}):
        assert usual != question(**change)
    assert tried["capture"].kept


def test_a_resumed_run_keeps_its_verdicts_on_the_same_machine_alone(steps, tried):
    study, config = steps.loader.study, pretraining(compile_model=True)
    first = decide_steps(config, study, CUDA, {})
    earlier = {**first, "capture": {"ok": True, "reason": "4 graphs", "seconds": 3.0}}
    assert decide_steps(config, study, CUDA, earlier) == earlier
    for damage in (
        {"machine": {**MACHINE, "driver": "amdgpu 6.12"}},
        {"capture": 3},
        {"capture": {"ok": 1}},
        {"compile-inductor": {"ok": True, "backend": "best"}},
        {"workers": None},
    ):
        assert decide_steps(config, study, CUDA, {**earlier, **damage}) == first


# --- trials in a child process -------------------------------------------------------------------


@pytest.mark.slow
def test_workers_make_the_batches_of_the_main_process(study, small_pretraining):
    config = small_pretraining(study, {"attention_layers": 1}, batch_size=8)
    spec = step_spec("try_workers", config, None, CPU)
    assert not spec.kept
    outcome = try_now(spec)
    assert (outcome.ok, outcome.reason) == (True, "4 batches of 4 processes")
