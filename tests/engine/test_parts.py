"""Parts of a model: gradients clipped apart and changes after each step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aam.engine.options import RunConfig, TrainingOptions
from aam.engine.step import clip_gradients
from aam.engine.trainer import Trainer
from tests.engine.conftest import Doubling, options


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
