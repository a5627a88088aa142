"""The engine on a task of ten lines, which knows no microbes: resume, ranks, averages, parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from aam.engine.checkpoint import load, save
from aam.engine.options import RunConfig, TrainingOptions
from aam.engine.step import clip_gradients
from aam.engine.trainer import Trainer
from tests.engine.conftest import Doubling, options, same


def test_training_lowers_the_loss_and_keeps_the_best():
    records: list[dict] = []
    trainer = Trainer(Doubling(), options(epochs=20), RunConfig(), on_record=records.append)
    trainer.fit()
    losses = [record["val_loss"] for record in records if record["event"] == "epoch"]
    assert losses[-1] < 0.2 * losses[0]
    assert trainer.progress.best == min(losses)


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.8}, {"gradient_accumulation_steps": 2}])
def test_a_run_that_goes_on_ends_with_the_same_bits(tmp_path, changes):
    whole = Trainer(Doubling(), options(**changes), RunConfig())
    whole.after_step = lambda trainer: save(tmp_path / str(trainer.progress.step), trainer.state())
    whole.fit()
    for step in (1, 7, 12):
        resumed = Trainer(Doubling(seed=9), options(**changes), RunConfig())
        resumed.restore(load(tmp_path / str(step)))
        resumed.fit()
        assert same(resumed.last_weights, whole.last_weights)
        assert same(resumed.best_weights, whole.best_weights)
        assert resumed.progress.step == whole.progress.step


RANKS = """
import json, sys
import torch
from pathlib import Path
from safetensors.torch import save_file
sys.path.insert(0, sys.argv[1])
from conftest import Doubling, options
from aam.engine.options import RunConfig
from aam.engine.task import Terms
from aam.engine.trainer import Trainer
from aam.device.distributed import end_rank, process_group

class Halves(Doubling):
    def __init__(self, world):
        super().__init__()
        self.world = world
    def batches(self, epoch, skip):
        for whole in super().batches(epoch, skip):
            yield whole.chunk(self.world.size)[self.world.rank]

torch.set_num_threads(1)
runtime = RunConfig(distributed=True)
with process_group(runtime) as world:
    trainer = Trainer(Halves(world), options(ema_decay=0.5), runtime, world)
    trainer.fit()
    if world.is_main:
        save_file(trainer.last_weights, sys.argv[2])
        Path(sys.argv[2]).with_suffix(".json").write_text(json.dumps(sorted(sys.modules)))
end_rank(0)
"""


@pytest.mark.slow
def test_two_ranks_are_one_and_nothing_of_microbes_is_imported(run_ranks, tmp_path):
    path = tmp_path / "weights.safetensors"
    run_ranks(2, "-c", RANKS, Path(__file__).parent, path)
    alone = Trainer(Doubling(), options(ema_decay=0.5), RunConfig())
    alone.fit()
    for name, value in load_file(path).items():
        torch.testing.assert_close(value, alone.last_weights[name], rtol=1e-5, atol=1e-6)
    modules = json.loads(path.with_suffix(".json").read_text())
    assert not [
        name
        for name in modules
        if name.startswith(("aam.data", "aam.model", "aam.training", "aam.config"))
    ]


# --- gradients clipped apart and changes after each step ---------------------------------------


def test_each_part_is_clipped_to_its_own_norm():
    parts = [nn.Linear(2, 1, bias=False) for _ in range(2)]
    for part, gradient in zip(parts, ([3.0, 4.0], [0.3, 0.4]), strict=True):
        part.weight.grad = torch.tensor([gradient])
    assert float(clip_gradients(parts, 1.0)) == pytest.approx(5.5)
    torch.testing.assert_close(parts[0].weight.grad, torch.tensor([[0.6, 0.8]]))
    torch.testing.assert_close(parts[1].weight.grad, torch.tensor([[0.3, 0.4]]))


def test_a_task_may_change_the_model_after_each_step_before_the_state_is_saved():
    events: list[str] = []

    class Changing(Doubling):
        def configure_optimizer(self, options: TrainingOptions) -> torch.optim.Optimizer:
            optimizer = super().configure_optimizer(options)
            optimizer.register_step_post_hook(lambda *_: self.change())
            return optimizer

        @torch.no_grad()
        def change(self) -> None:
            events.append("change")
            self.model[0].bias.zero_()

    trainer = Trainer(Changing(), options(epochs=1), RunConfig())

    def after_step(trainer: Trainer) -> None:
        events.append("save")
        assert not trainer.model[0].bias.any()

    trainer.after_step = after_step
    trainer.fit()
    assert events == ["change", "save"] * 5
