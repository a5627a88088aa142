"""The profile of a step."""

from __future__ import annotations

import json
import shutil

import pytest

from aam.api.profile import measure_steps
from aam.cli import main
from aam.config import PretrainConfig
from aam.model.aam import Aam
from aam.training.decisions import STAGES, make_steps

ENCODERS = Aam.encode_batch, Aam.encode_samples


@pytest.fixture(scope="module")
def study(simulate_study):
    return simulate_study(samples=36, asvs=60, depth=4000)


def test_stages_add_up_to_the_step_and_leave_the_network(study, small_pretraining):
    config: PretrainConfig = small_pretraining(study, {}, batch_size=6)
    steps = make_steps(config)
    measured = steps.stages(2, 0)
    assert (Aam.encode_batch, Aam.encode_samples) == ENCODERS
    assert set(measured["stages"]) == set(STAGES)
    assert all(measured["stages"][name] > 0 for name in STAGES)
    assert 0.5 < measured["accounted"] <= 1


def test_stages_end_with_the_step_that_fails(study, small_pretraining, monkeypatch):
    steps = make_steps(small_pretraining(study, {}, batch_size=6))
    monkeypatch.setattr(steps.model.sample.contents, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        steps.stages(1, 0)
    assert (Aam.encode_batch, Aam.encode_samples) == ENCODERS
    monkeypatch.undo()
    assert steps.stages(1, 0)["stages"]["ASV encoder"] > 0


def test_the_numbers_of_a_step_belong_together(study, small_pretraining):
    measured = measure_steps(make_steps(small_pretraining(study, {}, batch_size=6)), repeats=2)
    assert measured["batch_size"] == 6
    assert measured["step_s"]["p95"] >= measured["step_s"]["p50"] > 0
    assert len(measured["losses"]) == 4, "two warm-up steps and two that are timed"
    assert measured["peak_bytes"] > 1e8


@pytest.mark.parametrize("batch_size", ["8", "auto"])
def test_a_profile_is_printed_written_and_compared(
    study, tmp_path, batch_size, capsys, monkeypatch
):
    monkeypatch.setattr(measure_steps, "__defaults__", (2,))
    sizes = "--embedding-dim 8 --attention-layers 1 --attention-heads 2 --threads 1"
    words = f"profile --table {study}/table.biom --tree {study}/tree.nwk {sizes}".split()
    words += ["--batch-size", batch_size, "--device", "cpu"]
    out = tmp_path / "out"
    assert main([*words, "--memory-profile", "--output-dir", str(out)]) == 0
    assert "backward" in json.loads((out / "memory.json").read_text())["stages"]
    report, printed = json.loads((out / "profile.json").read_text()), capsys.readouterr().out
    assert report["samples_per_s"] > 0
    assert "of the wall time" in printed
    assert printed.endswith(f"{out}/profile.json\n")
    if batch_size == "auto":
        assert report["batch_size"] == max(map(int, report["peak_bytes_of"])) > 8
        assert max(report["peak_bytes_of"].values()) < report["limit_bytes"]
        assert f"largest batch: {report['batch_size']} samples" in printed
        return
    baseline = tmp_path / "before.json"
    shutil.copy(out / "profile.json", baseline)
    assert main([*words, "--output-dir", str(out)]) == 2, "exists already"
    again = [*words, "--output-dir", str(out), "--overwrite", "--baseline", str(baseline)]
    assert main(again) == 0
    assert " times)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "remedy"), [("step", "profile`"), ("memory", "-profile`"), ("batch-size", "auto`")]
)
def test_a_word_that_chose_what_is_measured_says_what_to_use(
    study, tmp_path, refused, word, remedy
):
    words = f"profile {word} --table {study}/table.biom --output-dir {tmp_path}/out"
    message = refused(main, words.split())
    assert f"{word} was removed: Use `aam profile" in message
    assert remedy in message
