"""Comparisons compare the same: losses of the plain implementation, matrices of scikit-bio, whole
processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aam.config import PretrainConfig
from aam.errors import InputError
from aam.options import RuntimeConfig
from aam.training.decisions import make_steps
from benchmarks.config import SpeedConfig
from benchmarks.plain import PlainTask, every_slot
from benchmarks.processes import time_process
from benchmarks.ranks import time_ranks
from benchmarks.report import time_report
from benchmarks.speed import compare_speed, describe_case


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    return simulate_study(samples=25, asvs=60, depth=4000)


@pytest.fixture
def config(study, small_pretraining, monkeypatch) -> PretrainConfig:
    monkeypatch.setattr("aam.training.losses.MASKED_ASVS", 1.0)
    return small_pretraining(study, {}, batch_size=6)


def test_the_plain_rival_computes_the_same_losses(config):
    shared, plain = make_steps(config), make_steps(config, PlainTask)
    batch = next(iter(shared.loader.epoch(0)))
    dense = every_slot(batch)
    assert len(dense.tokens) == batch.asv.numel() > 2 * len(batch.tokens)
    losses = []
    for steps in (shared, plain):
        terms = steps.task.losses(steps.model, steps.task.prepare(batch, 3))
        means = {name: float(total.detach() / count) for name, (total, count) in terms.items()}
        losses.append(means)
    assert losses[0].keys() == losses[1].keys() > {"unifrac"}
    for name, value in losses[0].items():
        assert value == pytest.approx(losses[1][name], rel=1e-4), name


def test_unifrac_is_compared_with_scikit_bio_on_the_same_samples(study):
    from benchmarks.unifrac import compare_unifrac

    device = RuntimeConfig(device="cpu")
    timing = compare_unifrac(study / "table.biom", study / "tree.nwk", device, repeats=1)
    assert timing["compared"] == timing["samples"] == 25
    for metric in ("unifrac", "weighted", "weighted-normalized"):
        assert timing["metrics"][metric]["difference"] < 1e-6
        assert timing["metrics"][metric]["default_ratio"] > 0
        (process,) = timing["processes"][metric]["aam"]
        assert process["processor_seconds"] > 0
        assert process["peak_bytes"] > 1e7


def test_the_memory_of_a_process_is_its_own_and_its_failure_is_one():
    block = bytearray(b"x" * (300 << 20))
    source = "sum(range(10**6)); block = b'x' * (50 << 20)"
    usage = time_process([sys.executable, "-S", "-c", source], threads=1)
    assert 50 << 20 < usage["peak_bytes"] < 100 << 20 < len(block)
    assert 0 < usage["processor_seconds"] < 60
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        time_process([sys.executable, "-S", "-c", "raise SystemExit(3)"], threads=1)


@pytest.mark.slow
def test_ranks_are_timed_beside_one_process(study, monkeypatch):
    monkeypatch.setattr("benchmarks.ranks.RANKS", (2,))
    timing = time_ranks(study / "table.biom", study / "tree.nwk", repeats=1)
    assert list(timing["ways"]) == ["one", "2 apart", "2 ranks"]
    assert timing["ways"]["one"]["ratio"] == {"p50": 1.0, "low": 1.0, "high": 1.0}
    assert all(way["samples_per_s"]["low"] > 0 for way in timing["ways"].values())


@pytest.mark.slow
def test_a_comparison_is_printed_and_written(study, tmp_path, capsys):
    output = tmp_path / "here.json"
    options = {"cases": ("dense",), "repeats": 3, "device": "cpu", "threads": 1, "output": output}
    files = {"table": study / "table.biom", "tree": study / "tree.nwk"}
    compare_speed(SpeedConfig(**files, **options))
    measured = json.loads(output.read_text())["cases"]["dense"]
    assert measured["ratio"] > 0
    assert "times the plain implementation's" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"metadata\.tsv"):
        time_ranks(study / "table.biom", study / "metadata.tsv", 1)


def test_ranks_are_shown_by_their_ratio():
    one = {"samples_per_s": {"p50": 100.0}, "ratio": {"p50": 1.0, "low": 1.0, "high": 1.0}}
    apart = {"samples_per_s": {"p50": 170.0}, "ratio": {"p50": 1.7, "low": 1.6, "high": 1.8}}
    line = describe_case({"ways": {"one": one, "2 apart": apart}})
    assert line.endswith("; 2 apart 1.70x (1.60 to 1.80)")


def test_a_report_is_timed_for_numbers_and_classes():
    timing = time_report(RuntimeConfig(device="cpu"), samples=60, baselines=1)
    assert set(timing["classes"]) == {"0", "2", "6"}
    assert all(kind["seconds"] > 0 for kind in timing["classes"].values())
