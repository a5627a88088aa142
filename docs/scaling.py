"""The tables of docs/scaling.md: arithmetic and bytes of a step against devices, from the sizes of the model.

``python docs/scaling.py`` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from aam.config import ModelConfig, TrainConfig
from aam.model.aam import Aam
from aam.model.heads import HeadConfig

MODELS = {"default": ModelConfig(), "100 M": ModelConfig(embedding_dim=768, attention_layers=6, attention_heads=12)}


@dataclass(frozen=True)
class Machine:
    """One kind of device: products in bf16 in FLOP/s, bytes/s that a device sends in its node, and a node beyond it."""

    name: str
    per_node: int
    flops: float
    inside: float
    outside: float


# Published figures of AMD and NVIDIA: dense bf16; Infinity Fabric 128 GB/s to each of three neighbours, NVLink 450 GB/s
# each way; one 200 Gb/s Slingshot port per APU, one 400 Gb/s InfiniBand port per GPU. Rings use all ports of a node.
MACHINES = (Machine("MI300A", 4, 980.6e12, 384e9, 4 * 25e9), Machine("H200", 8, 989.5e12, 450e9, 8 * 50e9))
# What the network reaches of the products' peak: about a third on a CPU (docs/benchmarks); taken for GPUs too.
REACHED = 0.3
# oral-age, rarefied to 1,000 reads: distinct ASVs in 64 samples, the power of the batch with which they grow (0.62
# fits 64 to 2,048 samples within 8 %), bases of an ASV, ASVs of a sample.
DISTINCT, GROWTH, BASES, SLOTS = 452.0, 0.62, 100, 47.0
BATCH = TrainConfig().batch_size


def parameters(config: ModelConfig) -> int:
    """Of the encoder with the heads of pretraining."""
    with torch.device("meta"):
        model = Aam(config, 1000, HeadConfig("unifrac", counts=True))
    return sum(parameter.numel() for parameter in model.parameters())


def distinct(samples: float) -> float:
    """ASVs of a batch."""
    return DISTINCT * (samples / 64) ** GROWTH


def operations(config: ModelConfig, samples: float) -> float:
    """FLOPs of forward and backward of a global batch: products of both encoders, of their pools and contents."""
    width, layers = config.embedding_dim, config.attention_layers
    patches, asvs = BASES / config.patch, distinct(samples)
    copies = asvs * TrainConfig().nuc_mask_asvs

    def blocks(sequences: float, length: float) -> float:
        return sequences * length * layers * (24 * width**2 + 4 * length * width)

    # Attention over a sample is as long as the largest of its group: twice the mean.
    encoders = blocks(asvs + copies, patches) + blocks(samples, SLOTS) + samples * layers * 4 * SLOTS**2 * width
    pooled = 2 * (asvs + copies) * (patches + 1) * width**2
    contents = 2 * asvs * 4 * width**2 + 2 * samples * asvs * 5 * width
    return 3 * (encoders + pooled + contents)


def sent(config: ModelConfig, devices: int, sharded: bool = False) -> dict[str, float]:
    """Bytes that each device sends in a step; rings, float32."""
    others, samples, width = (devices - 1) / devices, BATCH * devices, config.embedding_dim
    return {
        "gradients": (3 if sharded else 2) * others * 4 * parameters(config),
        # Gathered once, and their gradients summed as a whole.
        "vectors": 3 * others * 4 * width * (distinct(samples) + samples),
        "rarefied rows": 8 * BATCH * SLOTS * (devices - 1),
    }


def lines(config: ModelConfig, machine: Machine) -> Iterator[str]:
    """A table: without overlap of arithmetic and exchange."""
    yield "| devices | nodes | TFLOP each | MB sent by each: gradients | vectors | rows | ms arithmetic | exchange |"
    yield "|---|---|---|---|---|---|---|---|"
    for nodes in (1 / machine.per_node, 1, 2, 4, 16, 64):
        devices = round(machine.per_node * nodes)
        work, moved = operations(config, BATCH * devices) / devices, sent(config, devices)
        speed = machine.inside if nodes <= 1 else machine.outside
        times = 1000 * work / (REACHED * machine.flops), 1000 * sum(moved.values()) / speed
        megabytes = " | ".join(f"{value / 1e6:.2f}" for value in moved.values())
        mark = "**" if times[1] > times[0] else ""
        yield (
            f"| {devices} | {max(round(nodes), 1)} | {work / 1e12:.3f} | {megabytes} | {times[0]:.2f} | "
            f"{mark}{times[1]:.2f}{mark} |"
        )


def main() -> None:
    """Print all tables."""
    for name, config in MODELS.items():
        for machine in MACHINES:
            print(f"\n{name} model, {parameters(config) / 1e6:.1f} M parameters, on {machine.name}:\n")
            print("\n".join(lines(config, machine)))


if __name__ == "__main__":
    main()
