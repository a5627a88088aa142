"""What `aam bench` measures is the real thing: the same losses as its rival, stages that add up, whole files."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aam.commands.bench import bench, rate_notes
from aam.commands.bench_cases import time_prediction, time_training, time_unifrac
from aam.commands.bench_processes import time_process
from aam.commands.bench_ranks import time_two_processes
from aam.commands.compare import compare
from aam.config import DataConfig, FineTuneConfig, ModelConfig, TrainConfig
from aam.config_commands import BenchConfig, CompareConfig, SimulateConfig
from aam.data.simulate import simulate
from aam.device.options import RuntimeConfig
from aam.engine.options import RunConfig
from aam.errors import InputError
from aam.training.steps import STAGES, every_slot, make_steps


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "study"
    simulate(SimulateConfig(output_dir=folder, samples=25, asvs=60, length=50, depth=4000))
    return folder


@pytest.fixture
def config(study) -> FineTuneConfig:
    return FineTuneConfig(
        data=DataConfig(table=study / "table.biom", tree=study / "tree.nwk"),
        model=ModelConfig(embedding_dim=16, attention_heads=2),
        train=TrainConfig(batch_size=6, nuc_mask_asvs=1.0),
        runtime=RunConfig(device="cpu", threads=1),
    )


def test_the_plain_rival_computes_the_same_losses(config):
    shared, plain = make_steps(config), make_steps(config, plain=True)
    batch = next(iter(shared.loader.epoch(0)))
    dense = every_slot(batch)
    assert len(dense.tokens) == batch.asv.numel() > 2 * len(batch.tokens)
    losses = []
    for steps, given in ((shared, batch), (plain, dense)):
        terms = steps.task.losses(steps.model, steps.task.prepare(given, 3))
        losses.append({name: float(total.detach() / count) for name, (total, count) in terms.items()})
    assert losses[0].keys() == losses[1].keys() > {"unifrac"}
    for name, value in losses[0].items():
        assert value == pytest.approx(losses[1][name], rel=1e-4), name


def test_stages_add_up_to_the_step_and_leave_no_hooks(config):
    steps = make_steps(config)
    timing = steps.stages(2, 0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in steps.model.modules())
    assert set(timing["stages"]) == set(STAGES)
    assert all(timing["stages"][name] > 0 for name in STAGES)
    assert 0.5 < timing["accounted"] <= 1


def test_training_figures_belong_together(config):
    timing = time_training(config, repeats=3)
    assert timing["steps"] == 3
    assert timing["rate"]["executed"] == timing["rate"]["needed"]
    assert timing["rate"]["needed"] / timing["share"]["needed"] == pytest.approx(timing["product_rate"])
    assert timing["samples_per_s"]["p5"] <= timing["samples_per_s"]["p50"]
    assert timing["peak_bytes"] > 1e8
    again = replace(config, runtime=replace(config.runtime, gradient_checkpointing=True, asv_chunk_size=7))
    recomputed = time_training(again, repeats=1)
    assert recomputed["rate"]["executed"] > 1.1 * recomputed["rate"]["needed"]
    plain = time_training(config, repeats=1, plain=True)
    assert plain["distinct_asvs"] > timing["distinct_asvs"]


def test_unifrac_is_compared_with_scikit_bio_on_the_same_samples(study):
    pytest.importorskip("skbio")
    timing = time_unifrac(study / "table.biom", study / "tree.nwk", RuntimeConfig(device="cpu"), repeats=1)
    assert timing["compared"] == timing["samples"] == 25
    for metric in ("unifrac", "weighted", "weighted-normalized"):
        assert timing["metrics"][metric]["difference"] < 1e-6
        assert timing["metrics"][metric]["default_ratio"] > 0
        (process,) = timing["processes"][metric]["aam"]
        assert process["processor_seconds"] > 0
        assert process["peak_bytes"] > 1e7


def test_prediction_is_timed_as_a_user_would_run_it(study):
    timing = time_prediction(study / "table.biom", RuntimeConfig(device="cpu"), repeats=1)
    assert timing["samples"] == 25
    assert timing["seconds"]["p50"] > 0


def test_the_memory_of_a_process_is_its_own_and_its_failure_is_one():
    block = bytearray(b"x" * (300 << 20))
    usage = time_process([sys.executable, "-S", "-c", "sum(range(10**6)); block = b'x' * (50 << 20)"], threads=1)
    assert 50 << 20 < usage["peak_bytes"] < 100 << 20 < len(block)
    assert 0 < usage["processor_seconds"] < 60
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        time_process([sys.executable, "-S", "-c", "raise SystemExit(3)"], threads=1)


@pytest.mark.slow
def test_two_processes_are_timed_beside_one(study):
    timing = time_two_processes(study / "table.biom", study / "tree.nwk", repeats=1)
    assert list(timing["ways"]) == ["one", "apart", "data parallel"]
    assert timing["ways"]["one"]["ratio"] == {"p50": 1.0, "low": 1.0, "high": 1.0}
    assert all(way["samples_per_s"]["low"] > 0 for way in timing["ways"].values())


def test_two_processes_are_shown_by_their_ratio_and_compared_by_their_speed(tmp_path):
    def report(speed: float) -> Path:
        one = {"samples_per_s": {"p50": speed}, "ratio": {"p50": 1.0, "low": 1.0, "high": 1.0}}
        apart = {"samples_per_s": {"p50": 1.7 * speed}, "ratio": {"p50": 1.7, "low": 1.6, "high": 1.8}}
        cases = {"processes": {"ways": {"one": one, "apart": apart}}}
        assert rate_notes(cases["processes"], {}, "processes") == "two processes: apart 1.70x (1.60 to 1.80)"
        path = tmp_path / f"{speed}.json"
        path.write_text(json.dumps({"cases": cases}))
        return path

    slow, fast = report(100.0), report(130.0)
    assert compare(CompareConfig(first=slow, second=fast)) == 0
    assert compare(CompareConfig(first=fast, second=slow)) == 1


def test_results_are_printed_and_written(study, tmp_path, capsys):
    output = tmp_path / "benchmarks" / "here.json"
    bench(
        BenchConfig(
            table=study / "table.biom",
            tree=study / "tree.nwk",
            cases=("unifrac",),
            output=output,
            device="cpu",
            threads=1,
        )
    )
    written = json.loads(output.read_text())
    assert written["torch"] == torch.__version__
    assert list(written["cases"]) == ["unifrac"]
    assert "unweighted" in capsys.readouterr().out


def test_bad_options_are_refused(study, tmp_path):
    with pytest.raises(InputError, match="--repeats is 0"):
        bench(BenchConfig(repeats=0, output=tmp_path / "a.json"))
    with pytest.raises(InputError, match="--table is not given"):
        bench(BenchConfig(tree=study / "tree.nwk", output=tmp_path / "a.json"))
    with pytest.raises(InputError, match=f"{tmp_path} is a folder"):
        bench(BenchConfig(output=tmp_path))
    with pytest.raises(InputError, match="--cases unifrac: needs --tree"):
        bench(BenchConfig(table=study / "table.biom", cases=("unifrac",), output=tmp_path / "a.json", device="cpu"))
    with pytest.raises(InputError, match=r"metadata\.tsv"):
        time_two_processes(study / "table.biom", study / "metadata.tsv", 1)
    assert not (tmp_path / "a.json").exists()
