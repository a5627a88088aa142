"""The optimizer: which parameters decay, and its state by the names of parameters."""

from __future__ import annotations

import torch

from aam.engine.step import load_optimizer_state, make_optimizer, optimizer_state
from aam.sections import TrainingOptions


def test_only_trainable_matrices_decay():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 2))
    model[2].requires_grad_(False)
    optimizer = make_optimizer(model, TrainingOptions(weight_decay=0.25, lr=0.125))
    assert type(optimizer) is torch.optim.AdamW
    decay = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    assert decay == {
        id(model[0].weight): 0.25,
        id(model[0].bias): 0.0,
        id(model[1].weight): 0.0,
        id(model[1].bias): 0.0,
    }
    assert all(group["lr"] == 0.125 for group in optimizer.param_groups)


def test_the_state_is_keyed_by_parameter_names_and_can_be_loaded():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    optimizer = make_optimizer(model, TrainingOptions())
    for _ in range(2):
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
    state = optimizer_state(optimizer, model)
    assert set(state) == {
        f"{n}:{k}" for n in model.state_dict() for k in ("step", "exp_avg", "exp_avg_sq")
    }
    restored = make_optimizer(model, TrainingOptions())
    load_optimizer_state(restored, model, state)
    loaded = optimizer_state(restored, model)
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
