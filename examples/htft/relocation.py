"""Relocation: a unit that no input uses starts anew where the loss is worst."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from aam.device.distributed import World
from aam.device.rng import generator
from examples.htft.field import HypertensorField
from examples.htft.student import Stage

# Standard deviations above the mean at which a sample is bad, and what mean and square keep of
# themselves in a step.
DEVIATIONS, DECAY = 2.0, 0.99

# Of a unit that starts anew: widths of the band, and standard deviation of the control vectors.
BAND, CONTROL = (0.05, 0.5), 1e-3


class Relocation:
    """Every `every` steps moves the least used unit of a stage through the worst sample of the
    batch, if one is bad.

    A sample is bad where its loss is two standard deviations above the mean; both are followed over
    the steps. The ranks of `world` follow rank 0.
    """

    def __init__(self, every: int, seed: int, world: World) -> None:
        self.every, self.seed, self.world = every, seed, world
        self.moments: dict[str, Tensor] = {}
        self.losses: dict[str, Tensor] = {}
        self.moved = 0

    def observe(self, losses: dict[str, Tensor]) -> None:
        """Follow the losses of the samples of a batch, ``[B]`` by name."""
        self.losses = {name: loss.detach().double() for name, loss in losses.items()}
        for name, loss in self.losses.items():
            new = torch.stack([loss.mean(), loss.square().mean()])
            old = self.moments.get(name, new).to(new)
            self.moments[name] = old + (1 - DECAY) * (new - old)

    def end_step(self, step: int, stages: dict[str, Stage], optimizer: Optimizer) -> None:
        """Relocate a unit of each stage, by the name of its loss, if it is time."""
        if (step + 1) % self.every:
            return
        for name, stage in stages.items():
            if name in self.losses and stage.recent_input is not None:
                self._relocate(name, stage.recent_input, stage.field, step, optimizer)

    def _relocate(
        self, name: str, inputs: Tensor, field: HypertensorField, step: int, optimizer: Optimizer
    ) -> None:
        mean, square = self.moments[name]
        deviation = (square - mean**2).clamp_min(0).sqrt()
        worst = self.losses[name].argmax()
        is_bad = self.losses[name][worst] > mean + DEVIATIONS * deviation
        message = torch.cat([is_bad[None].to(inputs), inputs[worst]])
        message = inputs.new_tensor(self.world.broadcast(message.tolist()))
        if not bool(message[0]):
            return
        self.moved += 1
        unit = int(field.usage.argmin())
        random = torch.Generator().manual_seed(
            int(generator(self.seed, "relocate", name, step).integers(2**62))
        )
        normal = F.normalize(torch.randn(inputs.shape[1], generator=random), dim=0).to(inputs)
        band = BAND[0] + (BAND[1] - BAND[0]) * torch.rand(1, generator=random)
        control = CONTROL * torch.randn(field.control.shape[1:], generator=random)
        new = {
            field.normal: normal,
            field.offset: -normal @ message[1:],
            field.log_band: band.log(),
            field.control: control,
        }
        for parameter, value in new.items():
            parameter[unit] = value.to(parameter)
            for state in optimizer.state[parameter].values():
                if state.shape == parameter.shape:
                    state[unit] = 0
        field.usage[unit] = field.usage.mean()

    def state(self) -> dict[str, list[float]]:
        """Return mean and square of the losses."""
        return {name: moments.tolist() for name, moments in self.moments.items()}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Load what `state` returned."""
        self.moments = {
            name: torch.tensor(values, dtype=torch.float64) for name, values in state.items()
        }
