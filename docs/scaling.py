"""The tables of docs/scaling.md: computation and communication of a step for different numbers of
devices.

``python docs/scaling.py`` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from aam.config import ModelConfig, TrainConfig
from aam.model.aam import Aam
from aam.model.heads import HeadConfig

MODELS = {
    "default": ModelConfig(),
    "100 M": ModelConfig(embedding_dim=768, attention_layers=6, attention_heads=12),
}


@dataclass(frozen=True)
class Machine:
    """One kind of device.

    Parameters
    ----------
    flops
        Peak of bf16 matrix products in FLOP/s.
    inside, outside
        Bytes per second that a device sends in its node, and that a node sends to others.
    """

    name: str
    per_node: int
    flops: float
    inside: float
    outside: float


# Published values of AMD and NVIDIA: dense bf16; Infinity Fabric 128 GB/s to each of three
# neighbours, NVLink 450 GB/s each way; one 200 Gb/s Slingshot port per APU, one 400 Gb/s InfiniBand
# port per GPU. Rings use all ports of a node.
MACHINES = (
    Machine("MI300A", 4, 980.6e12, 384e9, 4 * 25e9),
    Machine("H200", 8, 989.5e12, 450e9, 8 * 50e9),
)
# Share of the peak that a network of width 768 reached on one H200 (docs/decisions.md); assumed for
# MI300A too.
PEAK_SHARE = 0.18
# The study oral-age, rarefied to 1,000 reads.
ASVS_IN_64_SAMPLES = 452.0
# Distinct ASVs grow with this power of the samples; it fits 64 to 2,048 samples within 8 %.
GROWTH = 0.62
BASES_OF_ASV = 100
ASVS_OF_SAMPLE = 47.0
SAMPLES_ON_DEVICE = TrainConfig().batch_size
NODES = (1, 2, 4, 16, 64)
# Samples/s of one process of one thread, and seconds of a step that ranks do not share
# (docs/decisions.md): optimizer, UniFrac, losses of pairs; two Intel Xeon cores.
ONE_RANK, NOT_SHARED = 160.0, 0.011
RANKS, LATENCIES, LINK = (1, 2, 4, 8, 16, 32, 64), (0.0, 10e-6, 100e-6), 25e9
# Messages that a rank sends one after the other in a step, for each further rank: rows and two
# gathers pass once around the ring; two sums of gradients of vectors, one of weights and three
# small ones (counts, finite, checkpoint) twice.
MESSAGES = 3 + 2 * 6
HEADER = "| devices | nodes | TFLOP each | MB sent by each: gradients | vectors | rows "
HEADER += "| ms computation | communication |"


def parameters(config: ModelConfig) -> int:
    """Return the number of parameters of the encoder with the heads of pretraining."""
    with torch.device("meta"):
        model = Aam(config, 1000, HeadConfig("unifrac", counts=True))
    return sum(parameter.numel() for parameter in model.parameters())


def distinct_asvs(samples: float) -> float:
    """Return the number of distinct ASVs in a batch."""
    return ASVS_IN_64_SAMPLES * (samples / 64) ** GROWTH


def operations(config: ModelConfig, samples: float) -> float:
    """Return the FLOPs of the forward and backward pass of a global batch: encoders, pools and
    contents.
    """
    width = config.embedding_dim
    layers = config.attention_layers
    patches = BASES_OF_ASV / config.patch
    asvs = distinct_asvs(samples)
    copies = asvs * TrainConfig().nuc_mask_asvs

    def blocks(sequences: float, length: float) -> float:
        return sequences * length * layers * (24 * width**2 + 4 * length * width)

    # Samples are padded to the largest of their group: twice the mean.
    padding = samples * layers * 4 * ASVS_OF_SAMPLE**2 * width
    encoders = blocks(asvs + copies, patches) + blocks(samples, ASVS_OF_SAMPLE) + padding
    pooled = 2 * (asvs + copies) * (patches + 1) * width**2
    contents = 2 * asvs * 4 * width**2 + 2 * samples * asvs * 5 * width
    return 3 * (encoders + pooled + contents)


def bytes_sent(
    config: ModelConfig, devices: int, sharded: bool = False, samples: float = SAMPLES_ON_DEVICE
) -> dict[str, float]:
    """Return the bytes that each device sends in a step of `samples` on each, with rings and
    float32.
    """
    ring_share = (devices - 1) / devices
    everything = samples * devices
    return {
        "gradients": (3 if sharded else 2) * ring_share * 4 * parameters(config),
        # One all-gather of the vectors and one all-reduce of their gradients.
        "vectors": 3
        * ring_share
        * 4
        * config.embedding_dim
        * (distinct_asvs(everything) + everything),
        "rarefied rows": 8 * samples * ASVS_OF_SAMPLE * (devices - 1),
    }


def table(config: ModelConfig, machine: Machine) -> Iterator[str]:
    """Yield the lines of a table, in which computation and communication do not overlap."""
    yield HEADER
    yield "|---" * HEADER.count(" | ") + "|---|"
    for devices in (1, *(nodes * machine.per_node for nodes in NODES)):
        nodes = max(devices // machine.per_node, 1)
        flops = operations(config, SAMPLES_ON_DEVICE * devices) / devices
        sent = bytes_sent(config, devices)
        computation = 1000 * flops / (PEAK_SHARE * machine.flops)
        communication = (
            1000 * sum(sent.values()) / (machine.inside if nodes == 1 else machine.outside)
        )
        megabytes = " | ".join(f"{value / 1e6:.2f}" for value in sent.values())
        bold = "**" if communication > computation else ""
        yield (
            f"| {devices} | {nodes} | {flops / 1e12:.3f} | {megabytes} | {computation:.2f} | "
            f"{bold}{communication:.2f}{bold} |"
        )


def step_seconds(config: ModelConfig, ranks: int, latency: float) -> float:
    """Return the time of a step of 64 samples, shared by CPU ranks that compute and send one after
    the other.
    """
    samples = SAMPLES_ON_DEVICE / ranks
    alone = SAMPLES_ON_DEVICE / ONE_RANK - NOT_SHARED
    sending = sum(bytes_sent(config, ranks, samples=samples).values()) / LINK
    return NOT_SHARED + alone / ranks + sending + MESSAGES * (ranks - 1) * latency


def curve(config: ModelConfig) -> Iterator[str]:
    """Yield the lines of a table: how many times the samples/s of one rank several have."""
    yield (
        "| ranks | "
        + " | ".join(f"{1e6 * latency:.0f} microseconds" for latency in LATENCIES)
        + " |"
    )
    yield "|---" * (1 + len(LATENCIES)) + "|"
    for ranks in RANKS:
        one = step_seconds(config, 1, 0.0)
        times = " | ".join(
            f"{one / step_seconds(config, ranks, latency):.2f}" for latency in LATENCIES
        )
        yield f"| {ranks} | {times} |"


def main() -> None:
    """Print all tables."""
    print("\n".join(curve(MODELS["default"])))
    for name, config in MODELS.items():
        for machine in MACHINES:
            print(
                f"\n{name} model, {parameters(config) / 1e6:.1f} M parameters, on {machine.name}:\n"
            )
            print("\n".join(table(config, machine)))


if __name__ == "__main__":
    main()
