"""The benchmark of a step, all of it, on a CPU that records and replays as a GPU does."""

from __future__ import annotations

import json

import pytest

from aam.config import ModelConfig
from aam.device.probe import Verdict
from aam.training.pretrain import AmpliconTask
from benchmarks import gpu_step
from benchmarks.gpu_step import CASES, NETWORKS, Sizes, parser, run_part
from tests.graphs import stand_in

SIZES = Sizes(warm_up=5, steps=3, seconds=30.0, compared=3)
KEYS = [f"{case.name}, {case.workers} workers" for case in CASES]


@pytest.fixture
def options(simulate_study, tmp_path, monkeypatch):
    """Options of a part on a CPU, whose networks are small."""
    study = simulate_study(samples=8, asvs=30, depth=600)
    words = f"widest --table {study}/table.biom --tree {study}/tree.nwk --batch-size 4"
    small = ModelConfig(embedding_dim=8, attention_layers=1, attention_heads=2)
    monkeypatch.setitem(NETWORKS, "widest", small)
    return parser().parse_args(
        [*words.split(), "--device", "cpu", "--output", f"{tmp_path}/o.json"]
    )


def test_the_parts_are_those_that_are_reported():
    assert [model.embedding_dim for model in NETWORKS.values()] == [96, 768, 1536]
    assert {case.workers for case in CASES if case.captured} == {2, 4}


def test_all_cases_are_measured_and_written_after_each(options, monkeypatch):
    stand_in(monkeypatch)
    compiled, written, write = [], [], gpu_step.write
    monkeypatch.setattr(AmpliconTask, "compile_losses", lambda task, name: compiled.append(name))
    monkeypatch.setattr(
        gpu_step, "write", lambda *args: (written.append(len(args[-1])), write(*args))
    )
    results = run_part("widest", options, SIZES, isolated=False)
    assert list(results) == KEYS
    assert written == [1, 2, 3, 4, 5]
    assert compiled == ["inductor"]
    content = json.loads(options.output.read_text())
    assert content["step"] == {"widest": results}
    for case, numbers in zip(CASES, results.values(), strict=True):
        assert "failed" not in numbers, numbers
        assert numbers["samples_per_s"] > 0
        assert ("graphs" in numbers) == case.captured
        if case.captured:
            assert numbers["right"]
            assert numbers["graphs"] >= 1
            assert numbers["difference"] < 1e-4


def test_a_case_that_fails_costs_no_other_its_numbers(options, monkeypatch):
    """One refuses, and in the end no time is left."""
    times = iter([0.0, 0.0, 1.0, 2.0, 290.0, 310.0])
    monkeypatch.setattr(gpu_step.time, "monotonic", lambda: next(times))
    tried = []

    def trial(spec):
        tried.append(spec)
        if len(tried) == 2:
            return Verdict(False, "its process ended with SIGSEGV")
        return Verdict(True, "", {"samples_per_s": 1.0})

    monkeypatch.setattr(gpu_step, "try_now", trial)
    results = run_part("widest", options)
    assert [spec.seconds for spec in tried] == [120.0, 120.0, 120.0]
    assert all(spec.isolated for spec in tried)
    assert results[KEYS[1]] == {"failed": "its process ended with SIGSEGV"}
    assert results[KEYS[2]] == {"samples_per_s": 1.0}
    assert results[KEYS[4]] == {"failed": "no time is left of 300 s"}


@pytest.mark.slow
def test_a_case_in_a_child_process(options, monkeypatch):
    """Without a stand-in its graphs are refused there, and eager steps are measured."""
    monkeypatch.setattr(gpu_step, "CASES", CASES[1:2])
    monkeypatch.setattr(gpu_step, "NETWORKS", NETWORKS)
    options.part = "default"
    results = run_part("default", options, SIZES)
    assert results["eager, 4 workers"]["samples_per_s"] > 0
