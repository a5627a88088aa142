"""Warm start from a pretrained encoder: which weights are loaded, frozen and unfrozen."""

from __future__ import annotations

import logging
from pathlib import Path

from aam.errors import InputError
from aam.model.aam import Aam

log = logging.getLogger("aam")


# Parts of a network that an encoder does not have, and those that read categories.
NEW_PARTS = ("target", "labels", "covariates")

# Part of a network whose outputs are the taxa that it was trained on.
TAXA = ("further.taxonomy",)

CONDITIONED = ("covariates", "target.factors", "target.offsets")


def load_matching_weights(
    network: Aam, encoder: Aam, source: Path, same_targets: bool, same_taxa: bool = False
) -> None:
    """Copy the weights of `encoder` that match in name and shape, and log which were loaded, new and ignored.

    Parameters
    ----------
    network : Aam
        Gets the weights.
    encoder : Aam
    source : Path
        Folder of the encoder, for messages.
    same_targets : bool
        Whether both have the same targets and covariates; only then the parts that read those are copied too.
    same_taxa : bool
        Whether their classes of ASVs are the same; only then the head of these is copied.

    Raises
    ------
    InputError
        No weight matches.
    """
    encoder_weights = encoder.state_dict()
    weights = network.state_dict()
    left_out = (*(() if same_targets else NEW_PARTS), *(() if same_taxa else TAXA))
    usable = {n: value for n, value in encoder_weights.items() if not n.startswith(left_out)}
    loaded = [name for name in weights if name in usable and weights[name].shape == usable[name].shape]
    if not loaded:
        raise InputError(f"{source}: no weight of it fits this model; pretrain again with the same sizes")
    network.load_state_dict({**weights, **{name: usable[name] for name in loaded}})
    parts = {"loaded": loaded, "new": weights.keys() - set(loaded), "ignored": encoder_weights.keys() - set(loaded)}
    for title, names in parts.items():
        heads = sorted({name.split(".")[0] for name in names})
        log.info("%s: %d tensors %s%s", source, len(names), title, f" ({', '.join(heads)})" if heads else "")


def freeze_base(network: Aam) -> None:
    """Freeze everything but the target heads."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(NEW_PARTS))


def freeze_asvs(network: Aam) -> None:
    """Freeze the ASV encoder."""
    network.asv.requires_grad_(False)
