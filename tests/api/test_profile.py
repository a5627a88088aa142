"""The profile of a step, and the kernels of rocprofv3."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aam.api.profile import kernel_table, measure_steps, read_kernels
from aam.cli import main
from aam.config import PretrainConfig
from aam.device import measure
from aam.training.decisions import STAGES, make_steps

ROCPROF = Path(__file__).parents[1] / "golden" / "rocprof"


@pytest.fixture(scope="module")
def study(simulate_study):
    return simulate_study(samples=36, asvs=60, depth=4000)


@pytest.fixture(autouse=True)
def small_product(monkeypatch):
    monkeypatch.setitem(measure.PRODUCT_SIZE, "cpu", 256)


def test_stages_add_up_to_the_step_and_leave_the_network(study, small_pretraining):
    config: PretrainConfig = small_pretraining(study, {}, batch_size=6)
    steps = make_steps(config)
    measured = steps.stages(2, 0)
    modules = (steps.model, steps.model.sample)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    assert set(measured["stages"]) == set(STAGES)
    assert all(measured["stages"][name] > 0 for name in STAGES)
    assert 0.5 < measured["accounted"] <= 1


def test_stages_end_with_the_step_that_fails(study, small_pretraining, monkeypatch):
    steps = make_steps(small_pretraining(study, {}, batch_size=6))
    monkeypatch.setattr(steps.model.sample.contents, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        steps.stages(1, 0)
    assert not steps.model._forward_hooks
    monkeypatch.undo()
    assert steps.stages(1, 0)["stages"]["ASV encoder"] > 0


def test_the_numbers_of_a_step_belong_together(study, small_pretraining):
    measured = measure_steps(small_pretraining(study, {}, batch_size=6), repeats=2)
    assert measured["flops_per_s"] / measured["share"] == pytest.approx(
        measured["product_flops_per_s"]
    )
    assert len(measured["losses"]) == 4, "two warm-up steps and two that are timed"
    assert measured["peak_bytes"] > 1e8
    assert 50 < measured["operations_per_step"] < 5000
    assert 1 <= measured["distinct_shapes"] <= 2
    assert measured["graphs"] == 0


@pytest.mark.parametrize("what", ["step", "batch-size", "memory"])
def test_a_profile_is_printed_written_and_compared(study, tmp_path, what, capsys):
    sizes = "--embedding-dim 8 --attention-layers 1 --attention-heads 2 --threads 1"
    words = f"profile {what} --table {study}/table.biom --tree {study}/tree.nwk {sizes}".split()
    words += ["--steps", "2", "--batch-size", "8", "--device", "cpu"]
    out = tmp_path / "out"
    assert main([*words, "--rocprof", str(ROCPROF), "--output-dir", str(out)]) == 0
    if what == "memory":
        assert "backward" in json.loads((out / "memory.json").read_text())["stages"]
        return
    report, printed = json.loads((out / "profile.json").read_text()), capsys.readouterr().out
    if what == "step":
        assert report["samples_per_s"] > 0
        assert report["kernels"]["attn_fwd"] == pytest.approx(0.0482112)
        assert "of the wall time" in printed
        assert "attention  attn_fwd" in printed
    else:
        assert report["batch_size"] == max(map(int, report["peak_bytes_of"])) > 8
        assert max(report["peak_bytes_of"].values()) < report["limit_bytes"]
    baseline = tmp_path / "before.json"
    shutil.copy(out / "profile.json", baseline)
    assert main([*words, "--output-dir", str(out)]) == 2, "exists already"
    again = [*words, "--output-dir", str(out), "--overwrite", "--baseline", str(baseline)]
    assert main(again) == 0
    assert " times)" in capsys.readouterr().out or what == "batch-size"


# --- the kernels of rocprofv3 -------------------------------------------------------------------


def test_the_ten_kernels_that_cost_most_are_listed_attention_apart():
    kernels = read_kernels(ROCPROF / "kernel_stats.csv")
    assert [*kernels][:3] == [
        "Cijk_Alik_Bljk_SB_MT64x64x16_MI16x16x1_SN_LDSB1",
        "attn_fwd",
        "bwd_kernel_dk_dv",
    ]
    lines = kernel_table(kernels)
    assert lines[0] == "kernels: 0.253 s, attention 34.8%"
    assert [line.split()[:2] for line in lines[1:3]] == [
        ["attention", "attn_fwd"],
        ["attention", "bwd_kernel_dk_dv"],
    ]
    assert len(lines) == 1 + 2 + 10
    assert all(len(line) < 100 for line in lines)
    assert "fill_kernel" not in lines[-1]


def test_a_folder_is_read_too(tmp_path):
    folder = tmp_path / "node-1"
    folder.mkdir()
    shutil.copy(ROCPROF / "kernel_stats.csv", folder / "17_kernel_stats.csv")
    assert len(read_kernels(tmp_path)) == 13


@pytest.mark.parametrize("content", ["Name\nx\n", "", "Name,TotalDurationNs\nx,y\n"])
def test_a_file_without_kernels_is_refused(tmp_path, refused, content):
    path = tmp_path / "kernel_stats.csv"
    path.write_text(content)
    words = f"profile step --table {path} --rocprof {path} --output-dir {tmp_path}/out"
    assert f"{path}: no kernels can be read" in refused(main, words.split())


@pytest.mark.slow
def test_steps_of_constant_shape_are_counted_for_one_rank_and_for_two(study, tmp_path):
    sizes = "--embedding-dim 16 --attention-layers 2 --attention-heads 2 --batch-size 8 --threads 1"
    words = f"profile step --table {study}/table.biom --tree {study}/tree.nwk {sizes} --steps 6"
    more = f"--constant-shapes --ranks 2 --rarefy-depth 500 --output-dir {tmp_path}/out"
    assert main(f"{words} {more}".split()) == 0
    report = json.loads((tmp_path / "out" / "profile.json").read_text())
    for numbers, most in ((report, 520), (report["of_ranks"], 546)):
        assert 300 < numbers["operations_per_step"] <= most
        assert numbers["host_waits_per_step"] == 0
        assert numbers["graphs"] == numbers["distinct_shapes"]
    assert report["of_ranks"]["ranks"] == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "profile.json",
        "run.json",
    ]
