"""The networks: patch tokens with a spectral branch, three convolutions, EEGNet; each gives a
vector per window.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.model.layers import AttentionPool, Stack
from examples.eeg.config import ModelOptions
from examples.eeg.recordings import Target
from examples.eeg.routing import rfft

# Bands in Hz: delta, theta, alpha, beta, gamma.
BANDS = ((1.0, 4.0), (4.0, 8.0), (8.0, 13.0), (13.0, 30.0), (30.0, 45.0))


def spectral_power(x: Tensor) -> Tensor:
    """Return the power ``[..., T // 2 + 1]`` of signals ``[..., T]`` under a Hann window."""
    window = torch.hann_window(x.shape[-1], dtype=x.dtype, device=x.device)
    spectrum = rfft(x * window)
    power: Tensor = spectrum.real.square() + spectrum.imag.square()
    return power / window.square().sum()


def band_matrix(
    bands: tuple[tuple[float, float], ...], samples: int, sampling_rate: float
) -> Tensor:
    """Return ``[T // 2 + 1, bands]``, which takes the mean of the bins of each band; bands end at
    the Nyquist rate.

    A band without a bin is all 0.
    """
    frequency = torch.arange(samples // 2 + 1) * sampling_rate / samples
    of_bands = [(frequency >= low) & (frequency < high) for low, high in bands]
    inside = torch.stack(of_bands, 1).float()
    return inside / inside.sum(0).clamp_min(1)


class SpectralBranch(nn.Module):
    """Logarithms of the power of learned mixtures of channels, in bins of the window or in five
    bands of true Hz.
    """

    matrix: Tensor

    def __init__(
        self, channels: int, samples: int, sampling_rate: float, options: ModelOptions
    ) -> None:
        super().__init__()
        self.mix = nn.Conv1d(channels, options.spatial, 1, bias=False)
        low, high, step = BANDS[0][0], min(BANDS[-1][1], sampling_rate / 2), sampling_rate / samples
        count = max(int((high - low) / step), 1)
        bins = tuple((low + step * k, low + step * (k + 1)) for k in range(count))
        matrix = band_matrix(BANDS if options.spectrum == "bands" else bins, samples, sampling_rate)
        self.register_buffer("matrix", matrix, persistent=False)
        features = options.spatial * matrix.shape[1]
        self.norm, self.out = nn.LayerNorm(features), nn.Linear(features, options.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, width]`` of windows ``[B, C, T]``."""
        power = spectral_power(self.mix(x)) @ self.matrix
        features: Tensor = self.out(self.norm((power + 1e-8).log().flatten(1)))
        return features


class PatchEncoder(nn.Module):
    """Channels are mixed, patches of time become tokens, tokens attend to each other; a spectral
    branch stands beside.

    Parameters
    ----------
    shape : tuple of int
        C and T of a window.
    sampling_rate : float
    options : ModelOptions
    """

    def __init__(self, shape: tuple[int, int], sampling_rate: float, options: ModelOptions) -> None:
        super().__init__()
        channels, samples = shape
        width, stride = options.width, options.patch // 2
        self.tokens = (samples - options.patch) // stride + 1
        self.spatial = nn.Conv1d(channels, width, 1)
        self.temporal = nn.Conv1d(width, width, options.patch, stride)
        self.position = nn.Parameter(0.02 * torch.randn(self.tokens, width))
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.stack = Stack(width, options.heads, options.layers, options.dropout)
        self.pool = AttentionPool(width, options.heads)
        self.spectral = None
        if options.spectrum != "none":
            self.spectral = SpectralBranch(channels, samples, sampling_rate, options)
        self.width = width * (1 if self.spectral is None else 2)

    def encode(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return tokens ``[B, P, D]`` of windows ``[B, C, T]``; those of `mask` ``[B, P]`` are
        withheld.
        """
        tokens = self.temporal(self.spatial(x)).transpose(1, 2)
        if mask is not None:
            tokens = torch.where(mask[..., None], self.mask_token, tokens)
        encoded: Tensor = self.stack(tokens + self.position)
        return encoded

    def summarize(self, tokens: Tensor, x: Tensor) -> Tensor:
        """Return vectors ``[B, width]`` of tokens and windows."""
        pooled = self.pool(tokens)
        return pooled if self.spectral is None else torch.cat([pooled, self.spectral(x)], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors ``[B, width]`` of windows ``[B, C, T]``."""
        return self.summarize(self.encode(x), x)


class ConvolutionEncoder(nn.Module):
    """Three convolutions over time and a gate of channels, a strong small baseline."""

    width = 128

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = ((channels, 32, 7), (32, 64, 5), (64, 128, 3))
        layers: list[nn.Module] = []
        for a, b, k in sizes:
            layers += [nn.Conv1d(a, b, k, 2, k // 2), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.3)]
        self.layers = nn.Sequential(*layers)
        self.gate = nn.Linear(128, 128)

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors ``[B, 128]`` of windows ``[B, C, T]``."""
        pooled = self.layers(x).mean(2)
        return pooled * self.gate(pooled).sigmoid()  # type: ignore[no-any-return]


class EegNet(nn.Module):
    """EEGNet (Lawhern and others, 2018) without its last layer: the layers of braindecode 1.8, as a
    test compares.
    """

    def __init__(self, channels: int, samples: int, filters: int = 8, depth: int = 2) -> None:
        super().__init__()
        wide = filters * depth
        self.temporal = nn.Sequential(
            nn.Conv2d(1, filters, (1, 64), padding=(0, 32), bias=False),
            nn.BatchNorm2d(filters, 1e-3, 0.01),
        )
        self.spatial = nn.Conv2d(filters, wide, (channels, 1), groups=filters, bias=False)
        self.layers = nn.Sequential(
            nn.BatchNorm2d(wide, 1e-3, 0.01),
            nn.ELU(),
            nn.AvgPool2d((1, 4)),
            nn.Dropout(0.25),
            nn.Conv2d(wide, wide, (1, 16), padding=(0, 8), groups=wide, bias=False),
            nn.Conv2d(wide, wide, 1, bias=False),
            nn.BatchNorm2d(wide, 1e-3, 0.01),
            nn.ELU(),
            nn.AvgPool2d((1, 8)),
            nn.Dropout(0.25),
            nn.Flatten(),
        )
        self.width = wide * (((samples + 1) // 4 + 1) // 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors of windows ``[B, C, T]``; each spatial filter has a norm of 1 at most."""
        filters = self.spatial.weight.renorm(2, 0, 1.0)
        x = F.conv2d(self.temporal(x[:, None]), filters, groups=self.spatial.groups)
        return self.layers(x)  # type: ignore[no-any-return]


class Predictor(nn.Module):
    """An encoder with a head for each target: identity for a number, logits for classes.

    Numbers are predicted in units of `scale` ``[targets, 2]``: mean and standard deviation of the
    training subjects.
    """

    scale: Tensor

    def __init__(self, encoder: nn.Module, targets: list[Target], scale: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        width = int(encoder.width)  # type: ignore[arg-type]
        self.heads = nn.ModuleList(
            nn.Linear(width, max(len(target.classes), 1)) for target in targets
        )
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return for each target standardized numbers ``[B, 1]`` or logits ``[B, K]``."""
        vectors = self.encoder(x)
        return [head(vectors) for head in self.heads]


def make_encoder(shape: tuple[int, int], sampling_rate: float, options: ModelOptions) -> nn.Module:
    """Return the encoder that the options name, for windows of this shape ``(C, T)``."""
    if options.network == "cnn":
        return ConvolutionEncoder(shape[0])
    if options.network == "eegnet":
        return EegNet(*shape)
    return PatchEncoder(shape, sampling_rate, options)


def augment(x: Tensor, options: ModelOptions, random: torch.Generator) -> Tensor:
    """Return windows ``[B, C, T]`` shifted in time, scaled, with noise, and with some channels set
    to 0.

    `random` is a generator of the CPU, so that all devices draw the same.
    """
    if options.shift:
        x = x.roll(int(torch.randint(-options.shift, options.shift + 1, (), generator=random)), 2)
    factor = 1 + options.scale * (2 * torch.rand(len(x), 1, 1, generator=random) - 1)
    kept = torch.rand(len(x), x.shape[1], 1, generator=random) >= options.channel_dropout
    x = x * factor.to(x)
    if options.noise:
        x = x + (options.noise * torch.randn(x.shape, generator=random)).to(x)
    return x * kept.to(x)


class Pretrainer(nn.Module):
    """An encoder with what pretraining needs: masked patches are predicted, subjects are told apart
    by InfoNCE.
    """

    def __init__(self, encoder: PatchEncoder, channels: int, options: ModelOptions) -> None:
        super().__init__()
        self.encoder, self.patch = encoder, options.patch
        self.reconstruct = nn.Linear(options.width, channels * (options.patch // 2))
        self.project = nn.Sequential(
            nn.Linear(encoder.width, options.width), nn.GELU(), nn.Linear(options.width, 32)
        )

    def patches(self, x: Tensor) -> Tensor:
        """Return the new samples of each token, ``[B, P, C * stride]``."""
        stride = self.patch // 2
        tokens = self.encoder.tokens
        cut: Tensor = x[..., : tokens * stride].unflatten(2, (tokens, stride))
        return cut.permute(0, 2, 1, 3).flatten(2)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the squared error ``[B, P]`` of each patch, and vectors of length 1 ``[B,
        32]``.
        """
        tokens = self.encoder.encode(x, mask)
        error = (self.reconstruct(tokens) - self.patches(x)).square().mean(2)
        vectors = F.normalize(self.project(self.encoder.summarize(tokens, x)), dim=1)
        return error, vectors


def contrast(vectors: Tensor, temperature: float) -> Tensor:
    """Return the symmetric InfoNCE loss ``[B]`` of pairs: rows ``2 i`` and ``2 i + 1`` belong
    together.
    """
    first, second = vectors[0::2], vectors[1::2]
    logits = first @ second.T / temperature
    target = torch.arange(len(first), device=vectors.device)
    losses = [F.cross_entropy(each, target, reduction="none") for each in (logits, logits.T)]
    return torch.stack(losses, 1).flatten()


def log_band_power(windows: Tensor, sampling_rate: float) -> Tensor:
    """Return the logarithms of the power of each channel in each band, ``[B, C * 5]``, as baselines
    see windows.
    """
    bands = band_matrix(BANDS, windows.shape[-1], sampling_rate).to(windows)
    power = spectral_power(windows) @ bands
    return (power + 1e-8).log().flatten(1)
