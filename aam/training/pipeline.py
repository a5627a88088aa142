"""`--pipeline`: one model on two devices."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aam.data.batch import Batch
from aam.data.loader import Loader
from aam.engine.options import RunConfig
from aam.model.aam import Aam, Masks, Outputs
from aam.runtime.device import device_name
from aam.runtime.distributed import SINGLE, World
from aam.runtime.timing import seconds

log = logging.getLogger("aam")


# The last stage is that of the leading rank, which has the losses.
LAST, FIRST = 0, 1

# Parts of the batch's ASVs: the second stage begins when the first is done with one of them.
CHUNKS = 8

TIMINGS = 3


@dataclasses.dataclass(eq=False)
class Link:
    """Tensors to and from the other stage, in order, without waiting before they are needed."""

    world: World
    given: list[tuple[Any, Tensor]] = dataclasses.field(default_factory=list)
    expected: deque[tuple[Any, Tensor]] = dataclasses.field(default_factory=deque)

    def send(self, value: Tensor) -> None:
        """Give `value` to the other, which expects one of its shape."""
        value = value.contiguous()
        self.given.append((dist.isend(value, 1 - self.world.rank), value))
        self.world.bytes_sent["hidden states"] += value.nbytes

    def expect(self, value: Tensor) -> None:
        """The next to come has this shape; its memory is taken for it."""
        self.expected.append((dist.irecv(value, 1 - self.world.rank), value))

    def take(self) -> Tensor:
        """The next that comes."""
        work, value = self.expected.popleft()
        work.wait()
        return value

    def settle(self) -> None:
        """Wait until the other has all that was given."""
        for work, _ in self.given:
            work.wait()
        self.given.clear()


class _Sent(torch.autograd.Function):
    """Hidden states go to the last stage; the gradient of the zero that stands for them comes from there."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, link: Link) -> Tensor:
        ctx.link = link
        link.send(hidden.detach())
        return hidden.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.link.take(), None


class _Received(torch.autograd.Function):
    """Hidden states come from the first stage; their gradient goes there."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, link: Link) -> Tensor:
        ctx.link = link
        return link.take()

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

    def forward(self, batch: Batch, masks: Masks | None = None, asvs: Tensor | None = None) -> Outputs:
        """What `model` gives, each stage its own outputs."""
        if not self.model.training:
            return self.model(batch, masks, asvs)  # type: ignore[no-any-return]
        if not self.facts:
            self.facts.update(self._plan(batch, masks))
        self.link.settle()
        self.world.work.append(self._work(batch, masks))
        return self._first(batch, masks) if self.world.rank == FIRST else self._last(batch, masks)

    def _chunks(self, tokens: Tensor) -> list[tuple[Tensor, int]]:
        """Parts of the ASVs, and how many blocks the first stage does of each."""
        cut, parts = self.facts["blocks"], tokens.split(self._at_once(-(-len(tokens) // CHUNKS)))
        return [(part, int(cut * (at + 1)) - int(cut * at)) for at, part in enumerate(parts)]

    def _work(self, batch: Batch, masks: Masks | None) -> int:
        """Tokens that the blocks of this stage read, once for each block."""
        asv, copies = self.model.asv, 0 if masks is None else len(masks.tokens)
        layers, patches = len(asv.stack.blocks), -(-batch.tokens.shape[1] // asv.patch)
        begun = sum(len(tokens) * blocks for tokens, blocks in self._chunks(batch.tokens))
        if self.world.rank == FIRST:
            return patches * (begun + layers * copies)
        return patches * (layers * len(batch.tokens) - begun) + layers * sum(batch.sizes)

    def _at_once(self, most: int) -> int:
        return min(most, self.model.asv_chunk or most)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        again = self.model.recompute_chunks and torch.is_grad_enabled()
        return checkpoint(function, *arguments, use_reentrant=False) if again else function(*arguments)

    def _first(self, batch: Batch, masks: Masks | None) -> Outputs:
        begun, zeros = [], []
        for tokens, blocks in self._chunks(batch.tokens):
            begun.append(self._run(self.model.asv.begin, tokens, batch.padded, blocks))
            zeros.append(_Sent.apply(begun[-1], self.link))  # type: ignore[no-untyped-call]
        # Made after what is sent, so that its backward comes before the gradients do.
        nucleotides = None if masks is None else self._nucleotides(batch, masks)
        for hidden in reversed(begun):
            self.link.expect(torch.empty_like(hidden))
        none = batch.counts[:0]
        return Outputs(none, none, nucleotides=nucleotides, awaited=torch.stack(zeros).sum())

    def _nucleotides(self, batch: Batch, masks: Masks) -> Tensor | None:
        asv, length = self.model.asv, masks.tokens.shape[1]
        if not length:
            return None
        parts = masks.tokens.split(max(self._at_once(len(masks.tokens)), 1))
        read = [self._run(asv.begin, part, batch.padded, len(asv.stack.blocks)) for part in parts]
        return asv.nucleotide_logits(asv.stack.norm(torch.cat(read)), length)[masks.where]

    def _last(self, batch: Batch, masks: Masks | None) -> Outputs:
        asv, chunks = self.model.asv, self._chunks(batch.tokens)
        patches = -(-batch.tokens.shape[1] // asv.patch)
        for tokens, _ in chunks:
            self.link.expect(asv.position.new_empty(len(tokens), patches, asv.position.shape[1]))
        anchor = asv.position.new_zeros((), requires_grad=True)
        vectors = []
        for tokens, blocks in chunks:
            hidden = _Received.apply(anchor, self.link)  # type: ignore[no-untyped-call]
            vectors.append(self._run(asv.end, hidden, tokens, batch.padded, blocks)[1])
        return self.model(batch, masks, torch.cat(vectors))  # type: ignore[no-any-return]

    def _plan(self, batch: Batch, masks: Masks | None) -> dict[str, Any]:
        """Where the cut is, by what the leading rank measures, and who does what."""
        found = json.dumps(self._balanced(batch, masks) if self.world.is_main else {}).encode()
        facts: dict[str, Any] = json.loads(self.world.broadcast(found))
        name = np.frombuffer(device_name(batch.counts.device).encode(), np.uint8)
        last, first = (own.tobytes().decode() for own in self.world.all_gather_arrays(name))
        facts["devices"] = {"last": f"rank {LAST}, {last}", "first": f"rank {FIRST}, {first}"}
        shares = f"{facts['shares']['first']:.0%} of the work, the last one {facts['shares']['last']:.0%}"
        log.info("pipeline: the first stage does %g blocks of each ASV, %s", facts["blocks"], shares)
        return facts

    def _balanced(self, batch: Batch, masks: Masks | None) -> dict[str, Any]:
        """Blocks of the first stage, and the shares of both, from the seconds of forward and backward."""
        asv, tokens = self.model.asv, batch.tokens[: self._at_once(-(-len(batch.tokens) // CHUNKS))]
        layers, batches = len(asv.stack.blocks), len(batch.tokens) / len(tokens)
        timed = functools.partial(_timed, module=self.model, device=tokens.device)
        whole = timed(lambda: asv(tokens, batch.padded)[1])
        stem = timed(lambda: asv.begin(tokens, batch.padded, 0))
        block = max((timed(lambda: asv.begin(tokens, batch.padded, layers)) - stem) / layers, 1e-9)
        vectors = asv.position.new_zeros(len(batch.tokens), asv.position.shape[1], requires_grad=True)
        samples = timed(lambda: _every(self.model(batch, masks, vectors)))
        copies = 0 if masks is None else len(masks.tokens) / len(tokens) * (stem + layers * block)
        # The samples wait for both halves of all ASVs; only more masked copies than samples make it less than half.
        share = min(max(0.5 - (copies - samples) / (2 * batches * whole), 0.0), 0.5)
        blocks = min(max((share * whole - stem) / block, 0.0), float(layers))
        blocks = round(blocks * CHUNKS) / CHUNKS
        first = batches * (stem + blocks * block) + copies
        total = batches * whole + copies + samples
        shares = {"first": first / total, "last": 1 - first / total}
        return {"blocks": blocks, "shares": shares, "seconds": {"stem": stem, "block": block, "samples": samples}}


def _every(outputs: Outputs) -> Tensor:
    """One number that depends on all outputs."""
    values = (getattr(outputs, field.name) for field in dataclasses.fields(outputs))
    return torch.stack([value.sum() for value in values if isinstance(value, Tensor)]).sum()


def _timed(work: Callable[[], Tensor], module: nn.Module, device: torch.device) -> float:
    """Seconds of a forward and backward pass, the shortest of some."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def once() -> None:
        torch.autograd.grad(work().sum(), parameters, allow_unused=True)

    return min(seconds(once, device) for _ in range(TIMINGS))


def staged(model: Aam, train: Loader, config: RunConfig, facts: dict[str, Any]) -> tuple[nn.Module, Loader]:
    """Both as they are, or with ``--pipeline`` the model in stages, and a loader of the same batches for both."""
    if not config.pipeline:
        return model, train
    world = train.world
    whole = dataclasses.replace(train, world=SINGLE, distances=train.distances and world.rank == LAST)
    return Staged(model, world, facts), whole
