"""Memory of a step: batch sizes that fit, and batches in parts; profiles, and the network of the
doctor.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aam.cli.main import main
from aam.commands.profile import read_rocprof
from aam.config import DataConfig, PretrainConfig, TrainConfig
from aam.device import timing
from aam.device.memory import memory_limit, resident_memory
from aam.engine import finders
from aam.engine.options import RunConfig
from aam.errors import InputError, RunError
from aam.model.reference import activations
from aam.training import decisions
from aam.training.decisions import (
    PretrainingSteps,
    choose_batch_size,
    largest_fitting_batch,
    make_steps,
)
from tests.engine.conftest import same
from tests.engine.test_finders import snapshot

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
    monkeypatch.setattr(finders, "resident_memory", lambda: base)
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
    def sizes(fitting: int = 0, **options: int) -> tuple[int, ...]:
        monkeypatch.setattr(decisions, "largest_fitting_batch", lambda *_: [fitting])
        config = PretrainConfig(train=TrainConfig(auto_batch_size=fitting > 0, **options))
        return tuple(choose_batch_size(config, steps.loader.study, CPU, {}).values())

    assert sizes(batch_size=64) == (64, 1)
    assert sizes(1000, batch_size=64) == (64, 1)
    assert sizes(50, batch_size=64) == (32, 2)
    assert sizes(36, batch_size=64) == (64, 1), "all samples there are"
    assert sizes(30, batch_size=16, gradient_accumulation_steps=3) == (24, 2)
    assert sizes(3, batch_size=7) == (1, 7)


def test_training_with_a_chosen_batch_size(study, tmp_path, capsys, refused, monkeypatch):
    monkeypatch.setattr(decisions, "_epoch_peak", lambda steps, size: 10**15 if size > 4 else 1)
    words = [
        "pretrain",
        "--table",
        str(study / "table.biom"),
        "--tree",
        str(study / "tree.nwk"),
        "--device",
        "cpu",
    ]
    words += [
        "--embedding-dim=8",
        "--attention-layers=1",
        "--attention-heads=2",
        "--epochs=1",
        "--threads=1",
    ]
    words += ["--batch-size=8", "--auto-batch-size", "--output-dir", str(tmp_path / "run")]
    assert main(words) == 0
    assert "batches of 4, 2 for each step of 8 samples" in capsys.readouterr().err
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["decisions"]["batch"] == {"batch_size": 4, "gradient_accumulation_steps": 2}
    assert about["config"]["train"]["batch_size"] == 4
    (tmp_path / "run" / "metrics.json").unlink()
    monkeypatch.setattr(decisions, "_epoch_peak", lambda *_: pytest.fail("searched again"))
    assert main([*words, "--resume-from", "auto"]) == 0
    stderr = refused(main, [*words, "--resume-from", "auto", "--no-auto-batch-size"])
    assert "--batch-size was 4 and is 8" in stderr
    assert "--auto-batch-size was True and is False" in stderr


# --- profiles ----------------------------------------------------------------------------------


def test_memory_of_steps(study, tmp_path):
    words = [
        "profile",
        "memory",
        "--table",
        str(study / "table.biom"),
        "--steps",
        "2",
        "--device",
        "cpu",
    ]
    assert (
        main([*words, "--embedding-dim=8", "--threads=1", "--output-dir", str(tmp_path / "out")])
        == 0
    )
    assert "backward" in json.loads((tmp_path / "out" / "memory.json").read_text())["stages"]


@pytest.mark.parametrize("what", ["step", "batch-size", "lr"])
def test_profiles(study, tmp_path, what, capsys, monkeypatch):
    monkeypatch.setitem(timing.PRODUCT_SIZE, "cpu", 256)
    words = [
        "profile",
        what,
        "--table",
        str(study / "table.biom"),
        "--tree",
        str(study / "tree.nwk"),
        "--steps",
        "2",
    ]
    words += [
        "--embedding-dim=8",
        "--attention-layers=1",
        "--attention-heads=2",
        "--threads=1",
        "--batch-size=8",
    ]
    assert main([*words, "--device", "cpu", "--output-dir", str(tmp_path / "out")]) == 0
    profile = json.loads((tmp_path / "out" / "profile.json").read_text())
    stdout = capsys.readouterr().out
    if what == "step":
        assert len(profile["top"]) == 10
        assert sum(profile["stages"].values()) > 0
        assert 0.5 < profile["accounted"] <= 1
        assert 0 < profile["utilisation"] < 1.5
        assert "traceEvents" in json.loads((tmp_path / "out" / "trace.json").read_text())
        assert "of the wall time" in stdout
    elif what == "batch-size":
        assert profile["batch_size"] == 36
        assert max(profile["peak_bytes_of"].values()) < profile["limit_bytes"]
    else:
        assert 1e-7 < profile["suggested"] < 1
        assert (tmp_path / "out" / "lr.png").read_bytes()[:4] == b"\x89PNG"
    assert main([*words, "--device", "cpu", "--output-dir", str(tmp_path / "out")]) == 2, (
        "exists already"
    )


def test_kernels_of_rocprof_are_read(tmp_path):
    path = tmp_path / "kernel_stats.csv"
    path.write_text(
        '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"a(x, '
        'y)",2,1000,500,1\n"b",1,3000,3000,2\n'
    )
    assert list(read_rocprof(path).items()) == [("b", 3e-6), ("a(x, y)", 1e-6)]
    path.write_text("Name\nx\n")
    with pytest.raises(InputError, match="expected Name and TotalDurationNs"):
        read_rocprof(path)


# --- the fixed network -------------------------------------------------------------------------


def test_layers_are_those_of_float64_and_stay_what_they_were():
    layers = activations(CPU)
    assert max(layer["error"] for layer in layers.values()) < 1e-4
    golden = json.loads((GOLDEN / "activations.json").read_text())
    assert layers.keys() == golden.keys()
    for name, layer in golden.items():
        for figure, value in layer.items():
            assert layers[name][figure] == pytest.approx(value, rel=1e-3, abs=1e-4), (name, figure)


@pytest.mark.gpu
def test_layers_on_a_gpu_are_those_of_float64():
    assert max(layer["error"] for layer in activations(torch.device("cuda")).values()) < 1e-3


@pytest.mark.gpu
def test_losses_on_a_gpu_are_those_of_the_cpu(study):
    config = PretrainConfig(
        data=DataConfig(table=study / "table.biom", tree=study / "tree.nwk"),
        train=TrainConfig(batch_size=16),
    )
    losses = []
    for device in ("cpu", "cuda"):
        steps = make_steps(
            replace(config, runtime=RunConfig(device=device, mixed_precision="none"))
        )
        steps.take(50, 0)
        losses.append([float(loss) for loss in steps.losses])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
