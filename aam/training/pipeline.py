"""Pipeline parallelism (`--pipeline`): one model in two stages on two devices."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aam.config import FineTuneConfig
from aam.data.batch import Batch
from aam.data.loader import Loader
from aam.device.device import device_name
from aam.device.distributed import SINGLE, World
from aam.device.link import Link
from aam.device.precision import autocast
from aam.device.routing import routed
from aam.device.timing import seconds, stage
from aam.engine.losses import Terms
from aam.model.aam import Aam, Masks, Outputs
from aam.model.asv import AsvEncoder, attention_mask
from aam.model.layers import Stack
from aam.predict.network import AsvVectors
from aam.training.losses import nucleotide_loss
from aam.training.task import AmpliconTask, MaskedBatch

log = logging.getLogger("aam")


# The main rank has the losses, so its stage is the last.
LAST, FIRST = 0, 1

# Parts of the ASVs of a batch: the last stage starts when the first has finished one of them.
CHUNKS = 8

TIMINGS = 3


def _run_blocks(stack: Stack, x: Tensor, mask: Tensor | None, start: int, stop: int) -> Tensor:
    """Return ``[batch, length, D]`` transformed by some blocks of a stack, recomputed in backward where it asks so."""
    for block in stack.blocks[start:stop]:
        recompute = stack.recompute and torch.is_grad_enabled()
        x = checkpoint(block, x, mask, use_reentrant=False) if recompute else block(x, mask)
    return x


def first_blocks(asv: AsvEncoder, tokens: Tensor, padded: bool, blocks: int) -> Tensor:
    """Return hidden states ``[U, P, D]`` of tokens ``[U, L]`` after the stem and the first `blocks`."""
    x, keep = asv.embed(tokens, padded)
    return _run_blocks(asv.stack, x, attention_mask(keep), 0, blocks)


def remaining_blocks(asv: AsvEncoder, x: Tensor, tokens: Tensor, padded: bool, blocks: int) -> Tensor:
    """Return ASV vectors ``[U, D]`` from the hidden states ``[U, P, D]`` after the first `blocks`."""
    _, keep = asv.split_patches(tokens, padded)
    x = _run_blocks(asv.stack, x, attention_mask(keep), blocks, len(asv.stack.blocks))
    return asv.pool_patches(asv.stack.norm(x), keep)


class FirstStageOutputs(NamedTuple):
    """Outputs of the first stage: logits of masked bases, and the zero whose gradient the last stage sends."""

    nucleotides: Tensor | None
    sent: Tensor


class _SendHidden(torch.autograd.Function):
    """Sends hidden states to the last stage, and returns a zero whose gradient comes from there."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, link: Link) -> Tensor:
        ctx.link = link
        link.send(hidden.detach())
        return hidden.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.link.receive(), None


class _ReceiveHidden(torch.autograd.Function):
    """Receives hidden states from the first stage, and sends their gradient back."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, link: Link) -> Tensor:
        ctx.link = link
        return link.receive()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.link.send(gradients[0])
        return gradients[0].new_zeros(()), None


class Staged(nn.Module):
    """`model` as two ranks train it, each with all weights; in evaluation it is `model` itself.

    The ASVs of a batch go in chunks. The first stage does the stem and some blocks of each and, while the last stage
    is busy with the samples, the masked copies, which nothing else waits for. Backward goes the same way back: that of
    the masked copies, then chunk by chunk as gradients come. `facts` say where the cut is.
    """

    def __init__(self, model: Aam, world: World, facts: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.world, self.facts = model, world, facts
        self.link = Link(world)

    def forward(
        self, batch: Batch, masks: Masks | None = None, asvs: Tensor | None = None
    ) -> Outputs | FirstStageOutputs:
        """Return what `model` gives; in training the first stage returns its own outputs."""
        if not self.model.training:
            return self.model(batch, masks, asvs)  # type: ignore[no-any-return]
        if not self.facts:
            self.facts.update(self._make_plan(batch, masks))
        self.link.wait_sent()
        self.world.work.append(self._work(batch, masks))
        return self._first_stage(batch, masks) if self.world.rank == FIRST else self._last_stage(batch, masks)

    def _chunks(self, tokens: Tensor) -> list[tuple[Tensor, int]]:
        """Return parts of the ASVs, each with the number of blocks that the first stage runs on it."""
        blocks = self.facts["blocks"]
        parts = tokens.split(self._limit_chunk(-(-len(tokens) // CHUNKS)))
        return [(part, int(blocks * (number + 1)) - int(blocks * number)) for number, part in enumerate(parts)]

    def _work(self, batch: Batch, masks: Masks | None) -> int:
        """Return the tokens that the blocks of this stage read, once for each block."""
        asv = self.model.asv
        copies = 0 if masks is None else len(masks.tokens)
        layers = len(asv.stack.blocks)
        patches = asv.patches(batch.tokens.shape[1])
        begun = sum(len(tokens) * blocks for tokens, blocks in self._chunks(batch.tokens))
        if self.world.rank == FIRST:
            return patches * (begun + layers * copies)
        return patches * (layers * len(batch.tokens) - begun) + layers * sum(batch.sizes)

    def _limit_chunk(self, size: int) -> int:
        return min(size, self.model.asv_chunk or size)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        recompute = self.model.recompute_chunks and torch.is_grad_enabled()
        return checkpoint(function, *arguments, use_reentrant=False) if recompute else function(*arguments)

    def _first_stage(self, batch: Batch, masks: Masks | None) -> FirstStageOutputs:
        hidden_states = []
        zeros = []
        for tokens, blocks in self._chunks(batch.tokens):
            hidden_states.append(self._run(first_blocks, self.model.asv, tokens, batch.padded, blocks))
            zeros.append(_SendHidden.apply(hidden_states[-1], self.link))  # type: ignore[no-untyped-call]
        # After the hidden states are sent, so that its backward runs before their gradients come.
        nucleotides = None if masks is None else self._nucleotides(batch, masks)
        for hidden in reversed(hidden_states):
            self.link.expect(torch.empty_like(hidden))
        return FirstStageOutputs(nucleotides, torch.stack(zeros).sum())

    def _nucleotides(self, batch: Batch, masks: Masks) -> Tensor | None:
        asv = self.model.asv
        length = masks.tokens.shape[1]
        if not length:
            return None
        parts = masks.tokens.split(max(self._limit_chunk(len(masks.tokens)), 1))
        encoded = [self._run(first_blocks, asv, part, batch.padded, len(asv.stack.blocks)) for part in parts]
        return asv.nucleotide_logits(asv.stack.norm(torch.cat(encoded)), length)[masks.where]

    def _last_stage(self, batch: Batch, masks: Masks | None) -> Outputs:
        asv = self.model.asv
        chunks = self._chunks(batch.tokens)
        patches = asv.patches(batch.tokens.shape[1])
        for tokens, _ in chunks:
            self.link.expect(asv.position.new_empty(len(tokens), patches, asv.position.shape[1]))
        anchor = asv.position.new_zeros((), requires_grad=True)
        vectors = []
        for tokens, blocks in chunks:
            hidden = _ReceiveHidden.apply(anchor, self.link)  # type: ignore[no-untyped-call]
            vectors.append(self._run(remaining_blocks, asv, hidden, tokens, batch.padded, blocks))
        return self.model(batch, masks, torch.cat(vectors))  # type: ignore[no-any-return]

    def _make_plan(self, batch: Batch, masks: Masks | None) -> dict[str, Any]:
        """Return where the model is cut, as the main rank measures it, and the device of each stage."""
        balance = json.dumps(self._measure_balance(batch, masks) if self.world.is_main else {}).encode()
        facts: dict[str, Any] = json.loads(self.world.broadcast(balance))
        name = np.frombuffer(device_name(batch.counts.device).encode(), np.uint8)
        last, first = (array.tobytes().decode() for array in self.world.all_gather_arrays(name))
        facts["devices"] = {"last": f"rank {LAST}, {last}", "first": f"rank {FIRST}, {first}"}
        shares = f"{facts['shares']['first']:.0%} of the work, the last one {facts['shares']['last']:.0%}"
        log.info("pipeline: the first stage does %g blocks of each ASV, %s", facts["blocks"], shares)
        return facts

    def _measure_balance(self, batch: Batch, masks: Masks | None) -> dict[str, Any]:
        """Return blocks of the first stage, and the shares of both, from seconds of forward and backward passes."""
        asv = self.model.asv
        tokens = batch.tokens[: self._limit_chunk(-(-len(batch.tokens) // CHUNKS))]
        layers = len(asv.stack.blocks)
        chunks = len(batch.tokens) / len(tokens)
        time_pass = functools.partial(_time_pass, module=self.model, device=tokens.device)
        encoder = time_pass(lambda: asv(tokens, batch.padded)[1])
        stem = time_pass(lambda: first_blocks(asv, tokens, batch.padded, 0))
        block = max((time_pass(lambda: first_blocks(asv, tokens, batch.padded, layers)) - stem) / layers, 1e-9)
        vectors = asv.position.new_zeros(len(batch.tokens), asv.position.shape[1], requires_grad=True)
        samples = time_pass(lambda: _sum_outputs(self.model(batch, masks, vectors)))
        copies = 0 if masks is None else len(masks.tokens) / len(tokens) * (stem + layers * block)
        # The samples wait for both halves of all ASVs; only more masked copies than samples make it less than half.
        share = min(max(0.5 - (copies - samples) / (2 * chunks * encoder), 0.0), 0.5)
        blocks = min(max((share * encoder - stem) / block, 0.0), float(layers))
        blocks = round(blocks * CHUNKS) / CHUNKS
        first = chunks * (stem + blocks * block) + copies
        total = chunks * encoder + copies + samples
        shares = {"first": first / total, "last": 1 - first / total}
        return {"blocks": blocks, "shares": shares, "seconds": {"stem": stem, "block": block, "samples": samples}}


def _sum_outputs(outputs: Outputs) -> Tensor:
    """Return one number that depends on all outputs."""
    values = (getattr(outputs, field.name) for field in dataclasses.fields(outputs))
    return torch.stack([value.sum() for value in values if isinstance(value, Tensor)]).sum()


def _time_pass(forward: Callable[[], Tensor], module: nn.Module, device: torch.device) -> float:
    """Return the seconds of a forward and backward pass, the shortest of `TIMINGS`."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def run_once() -> None:
        torch.autograd.grad(forward().sum(), parameters, allow_unused=True)

    return min(seconds(run_once, device) for _ in range(TIMINGS))


class PipelineTask(AmpliconTask):
    """The microbiome task on two ranks that share the work on each batch; both draw the same batches."""

    splits_batches = False

    def __init__(self, model: Aam, config: FineTuneConfig, train: Loader, validation: Loader, device: torch.device, *,
                 asvs: AsvVectors | None = None, world: World = SINGLE) -> None:  # fmt: skip
        # The first stage has no head that compares samples.
        study = train.study if world.rank == LAST else dataclasses.replace(train.study, further=())
        undivided = dataclasses.replace(
            train, study=study, world=SINGLE, distances=train.distances and world.rank == LAST
        )
        # Validation is divided among the ranks: all together take the batches of one device.
        shared = dataclasses.replace(validation, batch_size=max(validation.batch_size // world.size, 1))
        super().__init__(model, config, undivided, shared, device, asvs, world)
        self.facts: dict[str, Any] = {}
        self.stages = Staged(model, world, self.facts)

    @property
    def network(self) -> nn.Module:
        """The two stages around the model."""
        return self.stages

    def losses(self, network: nn.Module, prepared: MaskedBatch) -> Terms:
        """Return the losses of this rank's stage."""
        if self.world.rank == LAST:
            return super().losses(network, prepared)
        with autocast(self.config.runtime, self.device), routed(self.device), stage("forward"):
            nucleotides, sent = network(*prepared)
        terms: Terms = {}
        if nucleotides is not None and prepared.masks is not None:
            terms["nucleotide"] = nucleotide_loss(nucleotides, prepared.batch, prepared.masks)
        # Its weight is 1, and the gradient of its sum is what the last stage sends.
        terms["sent"] = sent, torch.ones_like(sent)
        return terms

    def work(self, prepared: MaskedBatch) -> int | None:
        """Return nothing: each stage reports its own work."""
        return None

    def state(self) -> dict[str, Any]:
        """Return where the model is cut."""
        return self.facts

    def restore(self, state: dict[str, Any]) -> None:
        """Cut the model where it was cut before."""
        self.facts.update(state)
