"""A simulated cohort: age is in the frequency of alpha, sex in the power at 18 Hz, all else is
noise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.device.rng import generator
from aam.errors import import_extra
from aam.files.output_folder import RUN, OutputFolder
from aam.options import not_none
from examples.eeg.config import SimulateConfig

SAMPLING_RATE = 100.0
WINDOW_SECONDS = 2.0
YOUNGEST, OLDEST = 5.0, 21.0

# The frequency of alpha at the lowest age, and how it rises in a year.
ALPHA_HZ, ALPHA_HZ_PER_YEAR = 8.0, 0.2
# Sex moves power between these, so that the power of the whole beta band says little of it.
SEX_HZ = (18.0, 24.0)

# Root mean squares in volts: noise, alpha, and the rhythms of `SEX_HZ` by sex.
NOISE, ALPHA, BETA = 1e-5, 6e-6, {"F": (3.6e-6, 1.6e-6), "M": (1.6e-6, 3.6e-6)}


def _pink_noise(
    random: np.random.Generator, channels: int, samples: int
) -> npt.NDArray[np.float64]:
    """Return noise ``[C, T]`` whose power falls as 1 / f, of unit root mean square."""
    spectrum = np.fft.rfft(random.standard_normal((channels, samples)))
    spectrum /= np.sqrt(np.maximum(np.arange(spectrum.shape[1]), 1))
    noise = np.fft.irfft(spectrum, samples)
    return np.asarray(noise / noise.std(axis=1, keepdims=True))


def _rhythm(random: np.random.Generator, hertz: float, samples: int) -> npt.NDArray[np.float64]:
    """Return a rhythm ``[T]`` of unit root mean square whose phase drifts and whose amplitude waxes
    and wanes.
    """
    turns = 2 * np.pi * np.arange(samples) / SAMPLING_RATE
    phase = turns * hertz + np.cumsum(0.05 * random.standard_normal(samples))
    envelope = 1 + 0.3 * np.sin(0.3 * turns + random.uniform(0, 6))
    wave = envelope * np.sin(phase + random.uniform(0, 6))
    return np.asarray(wave / wave.std())


def record(config: SimulateConfig, subject: int) -> tuple[npt.NDArray[np.float64], float, str]:
    """Return the recording ``[C, T]`` of a subject in volts, its age in years and its sex."""
    random = generator(config.seed, "subject", subject)
    age, sex = float(random.uniform(YOUNGEST, OLDEST)), str(random.choice(["F", "M"]))
    samples = round(config.windows * WINDOW_SECONDS * SAMPLING_RATE)
    signal = NOISE * _pink_noise(random, config.channels, samples)
    place = np.linspace(0, np.pi, config.channels)
    rhythms = [(ALPHA_HZ + ALPHA_HZ_PER_YEAR * (age - YOUNGEST), ALPHA, np.cos(place))]
    powers = zip(SEX_HZ, BETA[sex], strict=True)
    rhythms += [(hertz, amplitude, np.sin(place)) for hertz, amplitude in powers]
    for hertz, amplitude, topography in rhythms:
        pattern = topography + 0.3 * random.standard_normal(config.channels)
        rhythm = _rhythm(random, hertz * random.uniform(0.995, 1.005), samples)
        signal += amplitude * pattern[:, None] * rhythm
    return signal, age, sex


def write_recording(path: Path, signal: npt.NDArray[np.float64]) -> None:
    """Write a recording ``[C, T]`` in volts as a FIF file."""
    mne = import_extra("mne", "eeg", "writing recordings")
    names = [f"E{number + 1}" for number in range(len(signal))]
    info = mne.create_info(names, SAMPLING_RATE, "eeg")
    mne.io.RawArray(signal, info, verbose="error").save(path, fmt="single", verbose="error")


def simulate(config: SimulateConfig) -> dict[str, Any]:
    """Write a cohort in BIDS layout; all or nothing."""
    output = not_none(config.output_dir)
    names = (RUN, "participants.tsv", "dataset_description.json", "sub-*/eeg/*.fif")
    results = OutputFolder(output, "examples.eeg simulate", names, overwrite=config.overwrite)
    results.check()
    lines = ["participant_id\tage\tsex"]
    with results.replaced({}) as folder:
        for subject in range(config.subjects):
            name = f"sub-{subject + 1:04d}"
            signal, age, sex = record(config, subject)
            lines.append(f"{name}\t{age:.3f}\t{sex}")
            (folder / name / "eeg").mkdir(parents=True)
            write_recording(folder / name / "eeg" / f"{name}_task-rest_eeg.fif", signal)
        (folder / "participants.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        description = {"Name": "Simulated cohort", "BIDSVersion": "1.9.0"}
        text = json.dumps({**description, "DatasetType": "derivative"}) + "\n"
        (folder / "dataset_description.json").write_text(text, encoding="utf-8")
    return {"cohort": output, "subjects": config.subjects}
