"""What `aam bench` measures is the real thing: stages that add up, whole files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from aam.commands.bench import bench, time_prediction, time_training
from aam.config import PretrainConfig
from aam.config_commands import BenchConfig
from aam.device import timing
from aam.device.options import RuntimeConfig
from aam.errors import InputError
from aam.training.decisions import STAGES, make_steps


@pytest.fixture(scope="module")
def study(simulate_study):
    return simulate_study(samples=25, asvs=60, depth=4000)


@pytest.fixture
def config(study, small_pretraining) -> PretrainConfig:
    return small_pretraining(study, {}, batch_size=6, nuc_mask_asvs=1.0)


def test_stages_add_up_to_the_step_and_leave_no_hooks(config):
    steps = make_steps(config)
    measured = steps.stages(2, 0)
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in steps.model.modules()
    )
    assert set(measured["stages"]) == set(STAGES)
    assert all(measured["stages"][name] > 0 for name in STAGES)
    assert 0.5 < measured["accounted"] <= 1


@pytest.fixture(autouse=True)
def small_product(monkeypatch):
    monkeypatch.setitem(timing.PRODUCT_SIZE, "cpu", 256)


def test_training_figures_belong_together(config):
    measured = time_training(config, repeats=2)
    assert measured["steps"] == 2
    assert measured["rate"]["executed"] == measured["rate"]["needed"]
    assert measured["rate"]["needed"] / measured["share"]["needed"] == pytest.approx(
        measured["product_rate"]
    )
    assert measured["samples_per_s"]["p5"] <= measured["samples_per_s"]["p50"]
    assert measured["peak_bytes"] > 1e8
    again = replace(
        config, runtime=replace(config.runtime, gradient_checkpointing=True, asv_chunk_size=7)
    )
    recomputed = time_training(again, repeats=1)
    assert recomputed["rate"]["executed"] > 1.1 * recomputed["rate"]["needed"]


def test_prediction_is_timed_as_a_user_would_run_it(study):
    timing = time_prediction(study / "table.biom", RuntimeConfig(device="cpu"), repeats=1)
    assert timing["samples"] == 25
    assert timing["seconds"]["p50"] > 0


def test_results_are_printed_and_written(study, tmp_path, capsys):
    output = tmp_path / "benchmarks" / "here.json"
    files = {"table": study / "table.biom", "tree": study / "tree.nwk", "output": output}
    bench(BenchConfig(**files, cases=("unifrac",), device="cpu", threads=1))
    written = json.loads(output.read_text())
    assert written["torch"] == torch.__version__
    assert list(written["cases"]) == ["unifrac"]
    assert "unweighted" in capsys.readouterr().out


def test_bad_options_are_refused(study, tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path} is a folder"):
        bench(BenchConfig(output=tmp_path))
    with pytest.raises(InputError, match="--cases unifrac: needs --tree"):
        bench(
            BenchConfig(
                table=study / "table.biom",
                cases=("unifrac",),
                output=tmp_path / "a.json",
                device="cpu",
            )
        )
    assert not (tmp_path / "a.json").exists()
