"""Starting from a pretrained encoder: weights taken over, frozen, and unfrozen."""

from __future__ import annotations

import logging
from pathlib import Path

from torch.optim import Optimizer

from aam.errors import InputError
from aam.model.aam import Aam

log = logging.getLogger("aam")


# Parts of a network that an encoder does not have, and those that read categories.
NEW_PARTS = ("target", "labels", "covariates")

CONDITIONED = ("covariates", "target.factors", "target.offsets")


def take_weights(network: Aam, start: Aam, source: Path, alike: bool) -> None:
    """Copy what fits from `start`, and say what was loaded, what is new and what was ignored.

    What reads covariates and targets is taken only where both are `alike`. Raises `InputError` where nothing fits.
    """
    have, own = start.state_dict(), network.state_dict()
    have = {name: value for name, value in have.items() if alike or not name.startswith(NEW_PARTS)}
    loaded = [name for name in own if name in have and own[name].shape == have[name].shape]
    if not loaded:
        raise InputError(f"{source}: no weight of it fits this model; pretrain again with the same sizes")
    network.load_state_dict({**own, **{name: have[name] for name in loaded}})
    parts = {"loaded": loaded, "new": own.keys() - set(loaded), "ignored": start.state_dict().keys() - set(loaded)}
    for title, names in parts.items():
        heads = sorted({name.split(".")[0] for name in names})
        log.info("%s: %d tensors %s%s", source, len(names), title, f" ({', '.join(heads)})" if heads else "")


def freeze_base(network: Aam) -> None:
    """Let only the target heads learn."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(NEW_PARTS))


def unfreeze(network: Aam, optimizer: Optimizer, epochs: int, epoch: int) -> None:
    """Let learn what may in `epoch`: for `epochs` the new heads alone, then the sample encoder too, then everything.

    Gradual unfreezing (Howard and Ruder 2018), in three stages; nothing is changed where `epochs` is 0.
    """
    if epochs and epoch <= 2 * epochs:
        parts = (NEW_PARTS, (*NEW_PARTS, "sample"), ("",))[epoch // epochs]
        learning = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.startswith(parts) and id(parameter) in learning)
