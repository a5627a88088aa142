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
from aam.engine import step as steps_module
from aam.errors import RunError
from aam.options import RunConfig
from aam.training import decisions
from aam.training.decisions import (
    PretrainingSteps,
    choose_batch_size,
    largest_fitting_batch,
    make_steps,
)
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
