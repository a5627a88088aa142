"""HTFT: interpolators, projections, the field, the published rule, and several processes."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from aam.cli import main
from aam.device.distributed import SINGLE
from aam.engine.checkpoint import State, load, save
from aam.engine.trainer import Trainer
from aam.errors import InputError
from aam.options import RunConfig
from examples.htft.__main__ import PROGRAM
from examples.htft.commands import build
from examples.htft.config import FieldConfig, TrainConfig, published, train_problems
from examples.htft.field import HypertensorField
from examples.htft.interpolate import INTERPOLATORS, weights
from examples.htft.language import LanguageModel
from examples.htft.sketch import CountSketch, Srht, hadamard
from examples.htft.student import Student
from examples.htft.task import Data, StudentTask
from examples.htft.tests.htft_ranks import make_trainer, random_windows, small_options
from examples.htft.windows import Capture, read_windows, write_windows
from tests.programs import run_program, with_sources
from tests.refusals import refusal

ROOT = Path(__file__).parents[3]
RANKS = Path(__file__).parent / "htft_ranks.py"


# --- interpolators -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTERPOLATORS)
def test_weights_add_up_to_one_and_meet_the_control_vectors(name):
    low, high = torch.tensor(0.7).double(), torch.tensor(1.9).double()
    s = torch.linspace(-3, 3, 121).double()
    assert torch.allclose(weights(name, s, low, high).sum(-1), torch.ones(121).double(), atol=1e-12)
    knots = weights(name, torch.stack([-low, low * 0, high]), low, high)
    torch.testing.assert_close(knots, torch.eye(3).double(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", INTERPOLATORS)
def test_gradients_of_the_weights(name):
    s = torch.tensor([-2.0, -0.5, -0.01, 0.3, 1.2, 2.5]).double().requires_grad_()
    low, high = (torch.tensor(v).double().requires_grad_() for v in (0.8, 1.5))
    assert torch.autograd.gradcheck(lambda *values: weights(name, *values), (s, low, high))


# --- projections -------------------------------------------------------------------------------


def test_the_hadamard_transform_is_its_own_inverse():
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(hadamard(hadamard(x)), x, atol=1e-12, rtol=0)
    torch.testing.assert_close(hadamard(x).norm(dim=1), x.norm(dim=1))
    torch.testing.assert_close(hadamard(torch.eye(4))[1], torch.tensor([1.0, -1, 1, -1]) / 2)


@pytest.mark.parametrize("kind", [CountSketch, Srht])
def test_projections_keep_inner_products(kind):
    a, b = torch.randn(2, 1, 200, generator=torch.Generator().manual_seed(1)).double()
    scale = float(a.norm() * b.norm())
    projections = (kind(200, 128, seed) for seed in range(300))
    products = torch.stack([(project(a) * project(b)).sum() for project in projections])
    error = (products - (a * b).sum()) / scale
    # The standard deviation of one projection is near 1/sqrt(128) = 0.088.
    assert float(error.std()) < 0.11
    assert abs(float(error.mean())) < 4 * 0.11 / math.sqrt(300)


# --- the field ---------------------------------------------------------------------------------


def test_the_field_is_the_sum_over_its_units():
    def make(**options) -> HypertensorField:
        return HypertensorField(5, 3, FieldConfig(7, gain=2.0, **options), 0).double()

    field = make()
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).double()
    normal = F.normalize(field.normal, dim=1)
    s = x @ normal.T + field.offset
    gates = torch.softmax(-s.abs(), 1)
    low, high = field.log_band.exp().unbind(1)
    value = torch.einsum("bmw,mwd->bmd", weights("hermite", s, low, high), field.control)
    torch.testing.assert_close(field(x), 2 * (gates[..., None] * value).sum(1) + field.bias)
    torch.testing.assert_close(make(active=7)(x), field(x))
    torch.testing.assert_close(make(active=6, temperature=1e-3)(x), make(temperature=1e-3)(x))


@pytest.mark.parametrize("metric", ["planar", "euclid", "hybrid", "hybrid_exp"])
def test_gradients_of_the_field(metric):
    field = HypertensorField(4, 2, FieldConfig(5, metric=metric), 0).double()
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    names = [name for name, _ in field.named_parameters()]

    def call(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(field, dict(zip(names, values, strict=True)), (x,))

    values = (value.detach().clone().requires_grad_() for value in field.parameters())
    assert torch.autograd.gradcheck(call, (x, *values))


def test_anchors_choose_the_nearest_units():
    field = HypertensorField(2, 1, FieldConfig(3, active=1, locality="anchor", temperature=1e-3), 0)
    field.place_anchors(torch.tensor([[0.0, 0], [5, 5], [-5, 5]]))
    units = field.gates(torch.tensor([[0.1, 0.2], [4, 6], [-6, 4]]), field.normals()).units
    assert units is not None
    assert units[:, 0].tolist() == [0, 1, 2]


# --- the published rule ------------------------------------------------------------------------


class PublishedField:
    """The published learning rule, written out for one sample at a time with NumPy, in float64."""

    def __init__(self, field: HypertensorField, tau: float, k: int, decay: float = 5.0) -> None:
        named = field.named_parameters()
        values = {name: value.detach().double().numpy().copy() for name, value in named}
        self.n, self.delta, self.V = values["normal"], values["offset"], values["control"]
        self.band, self.tau, self.k, self.decay = np.exp(values["log_band"]), tau, k, decay

    def weights(self, s: float, a: float, b: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights of V-, V0, V+ and their derivative by s."""
        inside = -a < s < b
        t, this, other = (s / b, b, a) if s >= 0 else (-s / a, a, b)
        t = min(t, 1.0)
        h10, d10 = t**3 - 2 * t**2 + t, 3 * t**2 - 4 * t + 1
        near = (1 - (2 * t**3 - 3 * t**2 + 1)) + (t**3 - t**2) + h10 / 2
        d_near = -(6 * t**2 - 6 * t) + (3 * t**2 - 2 * t) + d10 / 2
        far, d_far = -h10 / 2 * this / other, -d10 / 2 * this / other
        w = np.array([far, 1 - near - far, near])
        d = np.array([d_far, -d_near - d_far, d_near]) / this * inside
        return (w, d) if s >= 0 else (w[::-1], -d[::-1])

    def step(self, x: np.ndarray, gradient_of, eta: float, eta_geometry: float) -> None:
        s = self.n @ x + self.delta
        foot = -self.delta[:, None] * self.n
        g = np.sqrt(np.abs(s) * np.linalg.norm(x - foot, axis=1))
        metric = g * np.exp(np.minimum(np.sqrt(g / self.decay), 60))
        nearest = np.argsort(np.linalg.norm(x - foot, axis=1))[: 4 * self.k]
        active = nearest[np.argsort(np.abs(s[nearest]))[: self.k]]
        gate = np.exp(-(metric[active] - metric[active].min()) / self.tau)
        gate /= gate.sum()
        both = [self.weights(s[i], *self.band[i]) for i in active]
        y = sum(q * w @ self.V[i] for q, i, (w, _) in zip(gate, active, both, strict=True))
        g_y = gradient_of(y)
        for q, i, (w, d) in zip(gate, active, both, strict=True):
            c = q * g_y @ (d @ self.V[i])
            self.V[i] -= eta * q * w[:, None] * g_y
            self.n[i] -= eta_geometry * c * x
            self.n[i] /= np.linalg.norm(self.n[i])
            self.delta[i] -= eta_geometry * c


def gradient(loss: str, target: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of a loss by the prediction; classes are those of the largest target."""
    if loss == "squared error":
        return y - target
    return np.exp(y - y.max()) / np.exp(y - y.max()).sum() - np.eye(3)[target.argmax()]


@pytest.mark.parametrize("loss", ["squared error", "cross entropy"])
def test_the_online_rule_is_the_published_one(loss):
    options = {"temperature": 0.5, "metric": "hybrid_exp", "band": (0.3, 1.5), "online": True}
    field = HypertensorField(6, 3, FieldConfig(24, active=4, **options), 0).double()
    field.normal.data = F.normalize(field.normal.data, dim=1)
    reference = PublishedField(field, 0.5, 4)
    geometry = {"params": [field.normal, field.offset], "lr": 0.004}
    optimizer = torch.optim.SGD([{"params": [field.control], "lr": 0.04}, geometry])
    random = torch.Generator().manual_seed(3)
    for _ in range(50):
        x = torch.randn(1, 6, generator=random).double()
        target = torch.randn(1, 3, generator=random).double()
        optimizer.zero_grad()
        y = field(x)
        squared = (y - target).square().sum() / 2
        (F.cross_entropy(y, target.argmax(1)) if loss == "cross entropy" else squared).backward()
        optimizer.step()
        field.normal.data = F.normalize(field.normal.data, dim=1)
        gradient_of = partial(gradient, loss, target[0].numpy())
        reference.step(x[0].numpy(), gradient_of, 0.04, 0.004)
    pairs = {"n": field.normal, "delta": field.offset, "V": field.control}
    for name, ours in pairs.items():
        assert np.abs(ours.detach().numpy() - getattr(reference, name)).max() < 1e-10


def test_the_published_variant_trains_by_its_rule():
    config = published(TrainConfig(student=small_options()))
    assert (config.student.update_rule, config.train.batch_size) == ("online", 1)
    online = small_options(update_rule="online", active=(4, 4))
    config = TrainConfig(student=online, train=config.train)
    windows = random_windows(30)
    student = build(config, Capture({"train": windows}, 5, {}), SINGLE)
    before = student.first.field.log_band.clone()
    data = Data(windows, windows, 0)
    task = StudentTask(student, data, config.train, torch.device("cpu"))
    Trainer(task, config.train, RunConfig()).fit()
    torch.testing.assert_close(student.first.field.normal.norm(dim=1), torch.ones(16))
    assert torch.equal(student.first.field.log_band, before)


# --- windows and students ----------------------------------------------------------------------


def test_windows_come_back_and_damage_is_named(tmp_path):
    windows = {"train": random_windows(20), "validation": random_windows(9, 1)}
    capture = Capture(windows, 5, {"provider": "test"})
    write_windows(tmp_path / "w", capture)
    loaded = read_windows(tmp_path / "w")
    assert loaded.classes == 5
    tensors = {}
    for subset, written in windows.items():
        for name, value in vars(written).items():
            assert torch.equal(getattr(loaded.windows[subset], name), value)
            tensors[f"{subset}.{name}"] = value
    tensors["validation.tokens"] = tensors["train.tokens"][:3]
    tensors["train.target"] = tensors["train.target"] + 90
    tensors["train.hidden"] = tensors["train.hidden"] * math.nan
    save(tmp_path / "wrong", State(tensors, {"classes": 5}))
    with pytest.raises(InputError) as error:
        read_windows(tmp_path / "wrong")
    found = [text.split(": ", 1)[1][:13] for text in error.value.problems]
    assert found == ["train targets", "hidden states", "validation wi"]
    save(tmp_path / "other", State({}, {}))
    assert "not the windows of a teacher" in refusal(read_windows, tmp_path / "other")
    (tmp_path / "w" / "state.safetensors").write_bytes(b"damaged")
    assert "state.safetensors" in refusal(read_windows, tmp_path / "w")


def test_a_gpt_does_not_see_later_tokens():
    model = LanguageModel("gpt", 11, 8, 6).eval()
    tokens = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 11
    hidden, changed = model.hidden(tokens), model.hidden(other)
    torch.testing.assert_close(hidden[:, :4], changed[:, :4])
    assert not torch.allclose(hidden[:, 4:], changed[:, 4:])
    torch.testing.assert_close(model.teach(tokens)[1], model(tokens)[:, -1])


@pytest.mark.parametrize("provider", ["gru", "gpt"])
def test_a_teacher_a_student_and_their_table(provider, tmp_path, capsys):
    teacher, student, table = (tmp_path / name for name in ("teacher", "student", "table.json"))
    device = "--epochs 1 --threads 1 --device cpu"
    words = f"teach --provider {provider} --output-dir {teacher} {device} --windows 64"
    words += " --held-out-windows 32 --width 8 --length 6 --vocabulary 7"
    assert main(words.split(), PROGRAM) == 0
    words = f"train --windows {teacher}/windows --output-dir {student} {device}"
    words += " --units 8 8 --embedding 8 --sketch 64 --projected 64 --block 16"
    assert main(words.split(), PROGRAM) == 0
    evaluate_words = f"evaluate --windows {teacher}/windows --output {table}"
    assert main([*evaluate_words.split(), "--model", f"{student}/model"], PROGRAM) == 0
    rows = json.loads(table.read_text())
    assert [*rows] == ["unigram", "teacher", "linear read-out", "student"]
    metrics = json.loads((tmp_path / "student" / "metrics.json").read_text())
    assert rows["student"]["perplexity"] == pytest.approx(metrics["perplexity"])
    assert "linear read-out" in capsys.readouterr().out
    shutil.copytree(tmp_path / "student", tmp_path / "copy" / "student")
    words = [*evaluate_words.split(), "--overwrite", "--model"]
    models = [str(tmp_path / place / "student" / "model") for place in ("", "copy")]
    assert main([*words, *models], PROGRAM) == 0
    assert [*json.loads(table.read_text())][3:] == models
    assert main([*words, str(tmp_path / "teacher" / "model")], PROGRAM) == 2
    assert "not a student ('shape'); --model takes the folder model/" in capsys.readouterr().err
    capture = read_windows(tmp_path / "teacher" / "windows")
    assert "a student of other windows" in refusal(
        Student.load, Path(models[0]), capture._replace(classes=3)
    )


@pytest.mark.slow
def test_the_student_learns_the_language(tmp_path):
    teacher, student, table = (tmp_path / name for name in ("teacher", "clean", "table.json"))
    windows = f"--windows {teacher}/windows"
    for words in (
        f"teach --output-dir {teacher} --threads 1",
        f"train {windows} --output-dir {student} --threads 1",
        f"evaluate {windows} --model {student}/model --output {table}",
    ):
        assert main(words.split(), PROGRAM) == 0
    rows = json.loads(table.read_text())
    unigram = rows["unigram"]["perplexity"]
    assert rows["clean"]["r2"] >= 0.4
    assert rows["clean"]["perplexity"] <= 0.6 * unigram
    assert rows["teacher"]["perplexity"] < rows["linear read-out"]["perplexity"] < unigram


def test_relocation_moves_unused_units_to_bad_samples_and_goes_on_bit_by_bit(tmp_path):
    def after_step(trainer: Trainer) -> None:
        if trainer.progress.step == 11:
            save(tmp_path / "state", trainer.state())

    first = make_trainer("batches", SINGLE, {"relocate_every": 2})
    first.after_step = after_step
    first.fit()
    assert first.task.relocation.moved > 2
    second = make_trainer("batches", SINGLE, {"relocate_every": 2})
    second.restore(load(tmp_path / "state"))
    second.fit()
    for name, value in first.last_weights.items():
        assert torch.equal(second.last_weights[name], value), name


def test_all_wrong_options_are_named_at_once(tmp_path, capsys, refused):
    student = small_options(units=(3,), shard_units=True, active=(2, 2))
    assert len([*train_problems(TrainConfig(devices=("cpu",), student=student))]) == 4
    online = dataclasses.replace(student, update_rule="online")
    assert len([*train_problems(TrainConfig(student=online))]) == 3
    words = f"train --windows {tmp_path} --units 3 --output-dir {tmp_path}/o"
    assert main(words.split(), PROGRAM) == 2
    assert "--units is 3, expected 2 numbers" in capsys.readouterr().err
    assert main(["teach", "--text", str(RANKS), "--output-dir", str(tmp_path / "o")], PROGRAM) == 2
    assert "--provider gru reads neither; give --provider aam or hf" in capsys.readouterr().err
    said = refused(main, ["benchmark", "--profile", str(tmp_path)], PROGRAM)
    assert "is a folder, expected a file" in said
    profile = tmp_path / "profile.json"
    words = f"benchmark --steps 25 --units 64 --profile {profile}"
    said = refused(main, words.split(), PROGRAM)
    assert "--steps 25 is not a multiple of 10" in said
    assert "--units is 64, expected 2 numbers" in said
    assert not profile.exists()
    assert not (tmp_path / "o").exists()


# --- several processes -------------------------------------------------------------------------


def distance(one: Path, other: Path) -> float:
    first, second = (load_file(path / "weights.safetensors") for path in (one, other))
    assert first.keys() == second.keys()
    differences = [first[name] - second[name] for name in first if first[name].numel()]
    return max(float(difference.abs().max()) for difference in differences)


def run_kind(run_ranks, kind: str, size: int, folder: Path, *state: Path) -> Path:
    folder.mkdir()
    run_ranks(size, RANKS, kind, size, folder, *state)
    return folder


@pytest.mark.slow
def test_stages_on_two_processes_are_one_bit_for_bit(run_ranks, tmp_path):
    one, two = (run_kind(run_ranks, "stages", n, tmp_path / str(n)) for n in (1, 2))
    assert distance(one, two) == 0
    states = [load(folder / "state") for folder in (one, two)]
    assert states[1].facts["task"]["stages"] == {"first": 1, "second": 0}
    first, second = (
        {name: value.double() for name, value in state.tensors.items() if name[:6] != "random"}
        for state in states
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    resumed = run_kind(run_ranks, "stages", 2, tmp_path / "resumed", two / "state")
    assert distance(resumed, one) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["batches", "units"])
def test_two_ranks_are_one_and_go_on_with_four(kind, run_ranks, tmp_path):
    one, two = (run_kind(run_ranks, kind, n, tmp_path / str(n)) for n in (1, 2))
    assert distance(one, two) < 1e-5
    resumed = run_kind(run_ranks, kind, 4, tmp_path / "resumed", two / "state")
    assert distance(resumed, one) < 1e-5


@pytest.mark.slow
def test_the_benchmark_measures_one_process_and_two_in_turn(tmp_path):
    profile = tmp_path / "profile.json"
    words = f"-m examples.htft benchmark --profile {profile} --steps 20 --repeats 1".split()
    run_program(sys.executable, *words, env=with_sources())
    report = json.loads(profile.read_text())
    ((one, two),) = report["pairs"]
    assert (len(one["processors"]), len(two["processors"])) == (1, 2)
    assert sum(two["processors"]) > one["processor"] / 2
