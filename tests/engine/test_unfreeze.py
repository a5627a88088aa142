"""Gradual unfreezing by the beginnings of names."""

from __future__ import annotations

import torch

from aam.engine.unfreeze import unfreeze


def test_stages_are_trained_one_after_the_other_then_everything():
    model = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1) for name in ("head", "top", "base", "fixed")})
    model["fixed"].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    seen = []
    for epoch in range(6):
        unfreeze(model, optimizer, (("head",), ("head", "top")), 2, epoch)
        seen.append({name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad})
    assert seen == [{"head"}] * 2 + [{"head", "top"}] * 2 + [{"head", "top", "base"}] * 2


def test_nothing_is_frozen_without_epochs():
    model = torch.nn.Linear(1, 1)
    unfreeze(model, torch.optim.SGD(model.parameters(), lr=0.1), (("none",),), 0, 0)
    assert all(p.requires_grad for p in model.parameters())
