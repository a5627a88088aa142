"""The EEG example: cohorts, windows, subsets, the spectrum, training, resume, challenge files."""

from __future__ import annotations

import itertools
import json
import math
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aam.cli import main
from aam.data.splits import Split
from aam.device import probe
from aam.device.probe import ProbeSpec, Verdict
from aam.engine.checkpoint import find_checkpoints, load
from aam.engine.step import StepRunner, make_optimizer
from aam.errors import InputError, RunError
from aam.io.metadata import Metadata
from aam.options import read_config
from examples.eeg import routing
from examples.eeg.__main__ import PROGRAM
from examples.eeg.challenge import challenge_problems, challenge_text, read_rows
from examples.eeg.cohort import record
from examples.eeg.config import (
    LabelOptions,
    ModelOptions,
    RecordingOptions,
    SimulateConfig,
    TrainConfig,
)
from examples.eeg.network import BANDS, PatchEncoder, band_matrix, contrast, spectral_power
from examples.eeg.rates import learning_rate_curve, suggested_learning_rate
from examples.eeg.recordings import (
    Recordings,
    Target,
    check_splits,
    cut_windows,
    make_splits,
    make_targets,
    read_recordings,
)
from examples.eeg.task import by_subject, scores, unfreeze
from tests.engine.conftest import Doubling, options, same
from tests.programs import with_sources
from tests.refusals import refusal

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    pytest.importorskip("mne", reason="the extra eeg is not installed")
    folder = tmp_path_factory.mktemp("eeg") / "cohort"
    words = f"simulate --output-dir {folder} --subjects 12 --windows 3 --channels 8"
    assert main(words.split(), PROGRAM) == 0
    return folder


SMALL = "--width 16 --layers 1 --heads 2 --threads 1 --device cpu"


def train_words(cohort: Path, folder: Path, *more: str) -> list[str]:
    words = f"train --cohort {cohort} --output-dir {folder} {SMALL} --epochs 2 --batch-size 8"
    return [*words.split(), *more]


# --- recordings --------------------------------------------------------------------------------


def test_recordings_come_back_with_their_subjects_and_labels(cohort):
    data = read_recordings(RecordingOptions(cohort=cohort))
    assert data.windows.shape == (36, 8, 200)
    assert data.subject.tolist() == [subject for subject in range(12) for _ in range(3)]
    signal, age, sex = record(SimulateConfig(subjects=12, windows=3, channels=8), 4)
    windows, _ = cut_windows(signal, RecordingOptions())
    assert np.abs(data.windows[data.subject == 4] - windows).max() < 1e-4
    age_target, sex_target = make_targets(data, LabelOptions(), 0)
    assert age_target.values[4] == pytest.approx(age, abs=1e-3)
    assert sex_target.classes[int(sex_target.values[4])] == sex


def test_artifacts_leave_windows_out_and_bad_channels_are_silent():
    random = np.random.default_rng(0)
    signal = 1e-5 * random.standard_normal((20, 600))
    signal[3, 250] = 1e-3
    signal[7] *= 1000
    windows, dropped = cut_windows(signal, RecordingOptions(bad_channels=True, max_microvolts=150))
    assert (len(windows), dropped) == (2, 1)
    assert not windows[:, 7].any()
    assert np.allclose(windows[:, 0].std(axis=1), 1, atol=1e-3)


def test_damaged_recordings_and_ids_that_leave_the_cohort_are_refused(cohort, tmp_path):
    bad = tmp_path / "cohort"
    shutil.copytree(cohort, bad)
    next((bad / "sub-0003").rglob("*_eeg.fif")).write_bytes(b"")
    table = bad / "participants.tsv"
    table.write_text(table.read_text().replace("sub-0001", "../cohort"))
    folder, recording = refusal(read_recordings, RecordingOptions(cohort=bad)).splitlines()
    assert "subject '../cohort', expected the name of a folder" in folder
    assert "_eeg.fif: cannot be read as a recording" in recording


def test_what_is_missing_is_named_at_once(cohort, tmp_path):
    data = read_recordings(RecordingOptions(cohort=cohort))
    wanted = LabelOptions(targets=("age", "iq", "task"))
    assert len(refusal(make_targets, data, wanted, 0).splitlines()) == 2
    same_labels = {"age": ("7",) * 12, "sex": ("F",) * 12}
    data = replace(data, metadata=replace(data.metadata, columns=same_labels))
    said = refusal(make_targets, data, LabelOptions(), 0)
    assert said.startswith("--targets age: 1 values")
    assert len(said.splitlines()) == 2
    for values, message in (
        ({"cohort": tmp_path}, "participants.tsv: no such file"),
        ({"high_hz": 5000}, "--high-hz 5000, expected below 50, half of its sampling rate"),
        ({"window_seconds": 90}, "0 windows of 90 s; expected "),
    ):
        options = RecordingOptions(**{"cohort": cohort, **values})
        assert message in refusal(read_recordings, options)


def test_labels_that_cannot_be_learned_are_refused():
    subjects = tuple(f"sub-{number}" for number in range(6))
    data = recordings(list(subjects), np.arange(6))
    sex = Target("sex", np.array([0.0, 1, 0, 1, 1, 1]), ("F", "M"))
    check_splits(data, [sex], [Split(subjects, (*["train"] * 4, "test", "test"), ("",) * 6)])
    alike = Split(subjects, ("test", "train", "test", "train", "train", "train"), ("2",) * 6)
    wrong = "--targets sex: the 4 training subjects of fold 2 have fewer than two values"
    assert wrong in refusal(check_splits, data, [sex], [alike])


def test_options_are_read_from_a_file_and_wrong_ones_are_named_together(tmp_path, refused):
    (tmp_path / "run.toml").write_text("unfreeze_epochs = 2\n[labels]\nlabel_share = 0.5\n")
    config = read_config(tmp_path / "run.toml", TrainConfig())
    assert (config.labels.label_share, config.unfreeze_epochs) == (0.5, 2)
    words = ["--width", "15", "--low-hz", "40", "--high-hz", "5"]
    shown = refused(main, train_words(tmp_path, tmp_path / "bad", *words), PROGRAM)
    assert "--width 15 is not divisible by --heads 2" in shown
    assert "--low-hz 40 is not below --high-hz 5" in shown


def recordings(subjects: list[str], rows: np.ndarray) -> Recordings:
    """Windows of silence of these subjects."""
    windows = np.zeros((len(rows), 1, 4), np.float32)
    return Recordings(windows, rows, tuple(subjects), Metadata((), {}, {}), 100.0)


@pytest.mark.parametrize(
    "options", [LabelOptions(), LabelOptions(cv=5), LabelOptions(label_share=0.1)]
)
def test_no_subject_stands_in_two_subsets(options):
    subjects = [f"sub-{number:02d}" for number in range(60)]
    data = recordings(subjects, np.repeat(np.arange(60), 3))
    splits = make_splits(subjects, options, 3)
    for split in splits:
        rows_of = data.rows_of(split)
        parts = {name: set(data.subject[rows].tolist()) for name, rows in rows_of.items()}
        assert all(parts.values())
        count = sum(map(len, parts.values()))
        assert len(set.union(*parts.values())) == count == len(split.sample_ids)
        assert all(len(rows) == 3 * len(parts[name]) for name, rows in rows_of.items())
    if options.cv:
        assert sorted(subject for split in splits for subject in split.ids("test")) == subjects
    if options.label_share < 1:
        everything = make_splits(subjects, LabelOptions(), 3)[0]
        assert set(splits[0].ids("train")) < set(everything.ids("train"))
        assert splits[0].ids("test") == everything.ids("test")


def test_metrics_of_subjects_are_those_of_the_means_of_their_windows():
    data = recordings(["a", "b", "c"], np.repeat([0, 1, 2], 2))
    predicted = np.array([1.0, 3, 4, 4, 5, 7])
    subjects, means = by_subject(data, np.arange(6), predicted)
    assert (subjects.tolist(), means.tolist()) == ([0, 1, 2], [2, 4, 6])
    metrics = scores(Target("age", np.array([1.0, 2, 3])), data, np.arange(6), predicted)
    assert metrics["subjects"]["pearson"] == pytest.approx(1)
    assert metrics["subjects"]["mae"] == pytest.approx(2)
    assert metrics["windows"]["pearson"] < 1


# --- the network -------------------------------------------------------------------------------


def test_bands_are_in_true_hertz():
    seconds = torch.arange(200) / 100
    bands = band_matrix(BANDS, 200, 100.0)
    for hertz, band in ((2.0, 0), (6.0, 1), (10.0, 2), (20.0, 3), (40.0, 4)):
        power = spectral_power(torch.sin(2 * torch.pi * hertz * seconds)[None]) @ bands
        assert int(power.argmax()) == band
    assert not band_matrix(((60.0, 70.0),), 200, 100.0).any()


# --- the place of the transform -----------------------------------------------------------------


@pytest.fixture
def route(monkeypatch):
    monkeypatch.delenv(routing.ROUTE, raising=False)
    routing.fft_runs_on_cpu.cache_clear()
    yield monkeypatch
    routing.fft_runs_on_cpu.cache_clear()


def test_the_transform_goes_to_the_cpu_by_rule_by_chip_or_after_a_failed_probe(route, tmp_path):
    route.setenv("AAM_CACHE", str(tmp_path))
    machine = {"device": "a GPU"}
    route.setattr(probe, "machine_facts", lambda device: machine)
    chip, found = SimpleNamespace(architecture="gfx942"), Verdict(True, "passed")
    route.setattr(routing, "platform_here", lambda device: chip)
    route.setattr(probe, "_ask_child", lambda *_: found)

    def runs_on_cpu(device: str = "cuda") -> bool:
        routing.fft_runs_on_cpu.cache_clear()
        return routing.fft_runs_on_cpu(torch.device(device))

    assert not runs_on_cpu("cpu")
    assert not runs_on_cpu()
    found = Verdict(False, "not done within 60 s")
    assert not runs_on_cpu(), "the verdict of this machine is kept"
    route.setenv("AAM_CACHE", str(tmp_path / "another"))
    assert runs_on_cpu()
    chip.architecture, found = "gfx1010", Verdict(True, "passed")
    assert runs_on_cpu()
    for rule, expected in (("fft=device", False), ("fft=cpu", True)):
        route.setenv(routing.ROUTE, rule)
        assert runs_on_cpu() is expected
    route.setenv(routing.ROUTE, "fft=gpu")
    with pytest.raises(InputError, match="'fft=gpu', expected fft=cpu or fft=device"):
        runs_on_cpu()


def test_the_probe_runs_in_a_child_process(monkeypatch):
    outcome = probe.try_now(
        ProbeSpec("examples.eeg.routing:try_transform", {}, torch.device("cpu"))
    )
    assert outcome.ok, outcome.reason
    monkeypatch.setattr(torch.fft, "irfft", lambda x: x.real[:, :1] * math.nan)
    with pytest.raises(RunError, match="off by nan"):
        routing.try_transform(torch.device("cpu"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_gradient_passes_through_a_routed_transform(route, device):
    route.setenv(routing.ROUTE, "fft=cpu")
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(0)).double().to(device)
    assert spectral_power(x).device == x.device
    assert torch.autograd.gradcheck(spectral_power, (x.requires_grad_(),))


# --- the learning-rate range test ---------------------------------------------------------------


class Diverging(Doubling):
    """A loss that grows a millionfold every ten steps."""

    steps = 0

    def prepare(self, batch, number):
        self.steps = number
        return batch

    def losses(self, network, batch):
        ((total, count),) = super().losses(network, batch).values()
        return {"error": (total * 1e6 ** (self.steps // 10), count)}


@pytest.mark.parametrize("kind", [Doubling, Diverging])
def test_the_range_test_tries_rates_up_to_those_that_diverge(kind):
    task = kind()
    runner = StepRunner(task, make_optimizer(task.model, options()))
    batches = (batch for epoch in itertools.count() for batch in task.batches(epoch, 0))
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    curve = learning_rate_curve(runner, batches, 30)
    rates = [rate for rate, _ in curve]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(1e-6)
    assert all(math.isfinite(loss) for _, loss in curve)
    assert same(before, task.model.state_dict())
    assert (len(curve) == 10) == (kind is Diverging)
    if kind is Doubling:
        assert curve[0][1] > min(loss for _, loss in curve)
    tried = [(1e-3, 2.0), (1e-2, 1.0), (1e-1, 3.0)]
    assert suggested_learning_rate(tried) == pytest.approx(1e-2 / 3)


def test_masked_tokens_are_not_read():
    torch.manual_seed(0)
    options = ModelOptions(width=8, layers=1, heads=2, dropout=0.0)
    encoder = PatchEncoder((4, 100), 100.0, options).eval()
    x = torch.randn(1, 4, 100)
    other = x.clone()
    other[..., :10] += 5
    mask = torch.zeros(1, encoder.tokens, dtype=torch.bool)
    mask[0, 0] = True
    torch.testing.assert_close(encoder.encode(x, mask), encoder.encode(other, mask))
    assert not torch.allclose(encoder.encode(x), encoder.encode(other))


def test_contrast_is_low_where_pairs_agree():
    vectors = torch.eye(4).repeat_interleave(2, 0)
    assert float(contrast(vectors, 0.1).mean()) < 1e-3
    assert float(contrast(vectors.roll(1, 0), 0.1).mean()) > 1


# --- runs --------------------------------------------------------------------------------------


def test_pretraining_training_and_a_challenge_file(cohort, tmp_path):
    pretrain = f"pretrain --cohort {cohort} --output-dir {tmp_path}/pre {SMALL} --epochs 1"
    assert main([*pretrain.split(), "--batch-size", "8"], PROGRAM) == 0
    more = f"--pretrained {tmp_path}/pre/model --unfreeze-epochs 1 --seeds 2".split()
    assert main(train_words(cohort, tmp_path / "run", *more), PROGRAM) == 0
    results = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {"transformer", "ridge on band power", "mean or most frequent"} <= results.keys()
    assert (tmp_path / "run" / "seed-1" / "model" / "manifest.json").is_file()
    predictions = tmp_path / "run" / "predictions.tsv"
    challenge = ["challenge", "--predictions", str(predictions)]
    assert main([*challenge, "--output", str(tmp_path / "file.csv")], PROGRAM) == 0
    assert main([*challenge, "--check", str(tmp_path / "file.csv")], PROGRAM) == 0


def test_learning_rate_and_batch_are_found_and_a_card_sets_the_sizes(cohort, tmp_path, capsys):
    small = f"--cohort {cohort} {SMALL}".split()
    assert main(["find", "batch-size", *small, "--max-size", "50"], PROGRAM) == 0
    assert "largest batch: 50" in capsys.readouterr().out
    assert main(["find", "lr", *small, "--steps", "12"], PROGRAM) == 0
    assert "learning rate: " in capsys.readouterr().out
    words = train_words(cohort, tmp_path / "run", "--card", "6gb", "--no-baselines")
    assert main([*words, "--epochs", "1"], PROGRAM) == 0
    facts = load(tmp_path / "run" / "model").facts
    assert "32 samples per step" in capsys.readouterr().err
    assert facts["model"]["width"] == 96


def test_a_challenge_file_is_made_of_predictions_only(tmp_path, capsys):
    (tmp_path / "p.tsv").write_text("#OTU ID\ts1\nACGT\t3\n")
    words = f"challenge --predictions {tmp_path}/p.tsv --output {tmp_path}/c.csv"
    assert main(words.split(), PROGRAM) == 2
    assert "columns '#OTU ID', 's1', expected 'participant_id'" in capsys.readouterr().err
    assert not (tmp_path / "c.csv").exists()


def test_what_a_challenge_refuses(tmp_path):
    row = {"age": "7.5", "sex": "F", "sex_confidence": "0.9"}
    rows = [{"participant_id": f"s{number}", **row} for number in range(4)]
    path = tmp_path / "file.csv"
    lines = challenge_text(rows).splitlines()
    path.write_text("\n".join(lines) + "\n")
    assert challenge_problems(path, rows) == []
    bad = [*lines[:-1], lines[1], "s9,1,rest,age,nan,", "s0,1,rest,sex,F,1.5"]
    path.write_text("\n".join(bad) + "\n")
    problems = "\n".join(challenge_problems(path, rows))
    for word in ("there twice", "missing: 's3 sex'", "not asked for: 's9 age'", "'nan'", "'1.5'"):
        assert word in problems
    path.write_text("a,b\n1,2\n")
    assert "expected 'subject'" in challenge_problems(path, rows)[0]
    assert read_rows(path, ",") == [{"a": "1", "b": "2"}]


@pytest.mark.slow
def test_a_run_that_is_killed_ends_with_the_same_bits(cohort, tmp_path):
    more = shlex.split("--epochs 20 --patience 0 --checkpoint-minutes 0 --resume-from auto")
    assert main(train_words(cohort, tmp_path / "whole", *more), PROGRAM) == 0
    words = [sys.executable, "-m", "examples.eeg", *train_words(cohort, tmp_path / "killed", *more)]
    process = subprocess.Popen(words, env=with_sources())
    while not find_checkpoints(tmp_path / "killed" / "checkpoints"):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "model").exists()
    assert main(words[3:], PROGRAM) == 0
    whole, killed = (load(tmp_path / name / "model") for name in ("whole", "killed"))
    assert all(torch.equal(value, killed.tensors[name]) for name, value in whole.tensors.items())
    tables = [tmp_path / name / "predictions.tsv" for name in ("whole", "killed")]
    assert tables[0].read_text() == tables[1].read_text()


@pytest.mark.slow
def test_the_simulated_cohort_is_learned_and_shuffled_labels_are_not(tmp_path):
    pytest.importorskip("mne", reason="the extra eeg is not installed")
    assert main(["simulate", "--output-dir", str(tmp_path / "cohort")], PROGRAM) == 0
    metrics = {}
    for name, more in (("run", []), ("shuffled", ["--shuffle-labels"])):
        words = f"train --cohort {tmp_path}/cohort --output-dir {tmp_path / name} --threads 1"
        assert main([*words.split(), *more], PROGRAM) == 0
        results = json.loads((tmp_path / name / "metrics.json").read_text())
        metrics[name] = {
            (learner, target): results[learner][target]["subjects"][score]
            for learner in ("transformer", "ridge on band power")
            for target, score in (("age", "pearson"), ("sex", "accuracy"))
        }
    for target, low in (("age", 0.9), ("sex", 0.85)):
        ridge = metrics["run"]["ridge on band power", target]
        assert metrics["run"]["transformer", target] > max(low, ridge)
    assert abs(metrics["shuffled"]["transformer", "age"]) < 0.35
    assert 0.3 < metrics["shuffled"]["transformer", "sex"] < 0.7


def test_stages_are_trained_one_after_the_other_then_everything():
    names = ("head", "top", "base", "fixed")
    model = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1) for name in names})
    model["fixed"].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    unfreeze(model, optimizer, (("none",),), 0, 0)
    assert all(model[name].weight.requires_grad for name in names[:3]), "0: nothing is frozen"
    seen = []
    for epoch in range(6):
        unfreeze(model, optimizer, (("head",), ("head", "top")), 2, epoch)
        seen.append({name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad})
    assert seen == [{"head"}] * 2 + [{"head", "top"}] * 2 + [{"head", "top", "base"}] * 2
