"""Recordings: read by MNE, cut into windows that know their subject, and the labels of subjects."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.data.splits import SUBSETS, Split, kfold, make_split, restricted
from aam.device.rng import generator
from aam.errors import InputError, import_extra
from aam.io.metadata import Metadata, read_metadata
from aam.options import not_none
from examples.eeg.config import LabelOptions, RecordingOptions

SUFFIXES = (".fif", ".edf", ".bdf", ".set", ".vhdr")

# Channels are bad whose standard deviation is so far above the mean of all.
DEVIATIONS = 3.0

# Places in `Recordings.windows` by subset.
Rows = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Recordings:
    """Windows of all subjects.

    Attributes
    ----------
    windows : ndarray
        float32 ``[N, C, T]``, each channel of a window with mean 0 and standard deviation 1.
    subject : ndarray
        int ``[N]``: the place of the subject of each window in `subjects`.
    subjects : tuple of str
        participant_id, sorted.
    metadata : Metadata
        participants.tsv.
    sampling_rate : float
    dropped : int
        Windows that were left out as artifacts.
    """

    windows: npt.NDArray[np.float32]
    subject: npt.NDArray[np.int64]
    subjects: tuple[str, ...]
    metadata: Metadata
    sampling_rate: float
    dropped: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Channels and samples of a window."""
        return self.windows.shape[1], self.windows.shape[2]

    def rows(self, subjects: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the windows of some subjects."""
        return np.flatnonzero(np.isin(np.array(self.subjects)[self.subject], [*subjects]))

    def rows_of(self, split: Split) -> Rows:
        """Return the windows of each subset of the subjects."""
        return {subset: self.rows(split.ids(subset)) for subset in SUBSETS}


# What MNE raises for damaged files.
UNREADABLE = (
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)


def read_recording(path: Path, options: RecordingOptions) -> npt.NDArray[np.float64]:
    """Return the EEG channels ``[C, T]`` of a file in volts, filtered and resampled as the options
    ask for.
    """
    mne = import_extra("mne", "eeg", "reading recordings")
    try:
        raw = mne.io.read_raw(path, preload=True, verbose="error").pick("eeg", verbose="error")
    except UNREADABLE as error:
        wrong = f"cannot be read as a recording ({error}); replace it, or leave it out"
        raise InputError(f"{path}: {wrong}") from error
    nyquist = raw.info["sfreq"] / 2
    edges = {"--low-hz": options.low_hz or 0, "--high-hz": options.high_hz or 0}
    if beyond := [f"{name} {hz:g}" for name, hz in edges.items() if hz >= nyquist]:
        expected = f"expected below {nyquist:g}, half of its sampling rate"
        raise InputError(f"{path}: {' and '.join(beyond)}, {expected}")
    if options.low_hz or options.high_hz:
        raw.filter(options.low_hz, options.high_hz, verbose="error")
    if raw.info["sfreq"] != options.sampling_rate:
        raw.resample(options.sampling_rate, verbose="error")
    return np.asarray(raw.get_data())


def cut_windows(
    signal: npt.NDArray[np.float64], options: RecordingOptions
) -> tuple[npt.NDArray[np.float32], int]:
    """Return standardized windows ``[n, C, T]`` of a recording, and how many were left out as
    artifacts.
    """
    if options.bad_channels:
        deviation = signal.std(axis=1)
        limit = deviation.mean() + DEVIATIONS * deviation.std()
        signal = np.where(((deviation > limit) | (deviation == 0))[:, None], 0.0, signal)
    size = round(options.window_seconds * options.sampling_rate)
    step = max(round(options.stride_seconds * options.sampling_rate), 1)
    if signal.shape[1] < size:
        return np.zeros((0, len(signal), size), np.float32), 0
    views = np.lib.stride_tricks.sliding_window_view(signal, size, axis=1)[:, ::step]
    windows = views.transpose(1, 0, 2)
    kept = np.full(len(windows), True)
    if options.max_microvolts is not None:
        kept = np.abs(windows).max(axis=(1, 2)) <= 1e-6 * options.max_microvolts
    windows = windows[kept]
    centred = windows - windows.mean(axis=2, keepdims=True)
    standardized = centred / np.maximum(centred.std(axis=2, keepdims=True), 1e-12)
    return standardized.astype(np.float32), int((~kept).sum())


def read_recordings(options: RecordingOptions) -> Recordings:
    """Read the recordings of a cohort, simulated or real.

    Raises
    ------
    InputError
        Lists subjects whose id is no name of a folder, or whose recording is damaged, those without
        a recording or without a window, and those with another number of channels.
    """
    cohort = not_none(options.cohort)
    metadata = read_metadata(cohort / "participants.tsv")
    subjects = tuple(sorted(metadata.ids))
    problems: list[str] = []
    parts: list[npt.NDArray[np.float32]] = []
    dropped = 0
    for name in subjects:
        try:
            if name in (".", "..") or Path(name).name != name:
                expected = f"expected the name of a folder in {cohort}"
                raise InputError(f"{metadata.source}: subject {name!r}, {expected}")
            found = (cohort / name).rglob("*_eeg.*")
            paths = sorted(path for path in found if path.suffix in SUFFIXES)
            cut = [cut_windows(read_recording(path, options), options) for path in paths]
        except InputError as error:
            problems += error.problems
            continue
        dropped += sum(count for _, count in cut)
        channels = {windows.shape[1] for windows, _ in [*cut, *((part, 0) for part in parts[:1])]}
        number = sum(len(windows) for windows, _ in cut)
        if len(channels) != 1 or not number:
            problems.append(
                f"{cohort / name}: {len(paths)} recordings, channels {sorted(channels)}, {number} "
                f"windows of {options.window_seconds:g} s; expected the channels of the first "
                "subject, and one window or more (--window-seconds, --max-microvolts)"
            )
        else:
            parts.append(np.concatenate([windows for windows, _ in cut]))
    if problems:
        raise InputError(*problems)
    subject = np.repeat(np.arange(len(parts)), [len(windows) for windows in parts])
    return Recordings(
        np.concatenate(parts), subject, subjects, metadata, options.sampling_rate, dropped
    )


@dataclass(frozen=True, eq=False)
class Target:
    """A column to predict: values ``[S]`` by subject, NaN where missing; classes, or none for a
    number.
    """

    name: str
    values: npt.NDArray[np.float64]
    classes: tuple[str, ...] = ()


def make_targets(recordings: Recordings, options: LabelOptions, seed: int) -> list[Target]:
    """Return the targets; `InputError` lists the columns that are not there, or have one value
    only.
    """
    metadata, subjects = recordings.metadata, recordings.subjects
    metadata.require(options.targets)
    targets, problems = [], []
    for name in options.targets:
        labels = metadata.values(name, subjects)
        levels = tuple(sorted({label for label in labels if label is not None}))
        if len(levels) < 2:
            found = f"{len(levels)} values in {metadata.source}"
            problems.append(f"--targets {name}: {found}, expected 2 or more")
            continue
        if metadata.kinds[name] == "numeric":
            values, levels = metadata.numbers(name, subjects), ()
        else:
            places = (np.nan if label is None else levels.index(label) for label in labels)
            values = np.array([*places])
        if options.shuffle_labels:
            values = generator(seed, "shuffle", name).permutation(values)
        targets.append(Target(name, values, levels))
    if problems:
        raise InputError(*problems)
    return targets


def check_splits(
    recordings: Recordings, targets: Iterable[Target], splits: Iterable[Split]
) -> None:
    """Raise `InputError` where the training subjects of a split have fewer than two values of a
    target.
    """
    subjects = np.array(recordings.subjects)
    problems = []
    for target, split in itertools.product(targets, splits):
        train = target.values[np.isin(subjects, split.ids("train"))]
        if len(set(train[~np.isnan(train)].tolist())) < 2:
            fold = f" of fold {split.test_fold}" if split.test_fold else ""
            wrong = f"the {len(train)} training subjects{fold} have fewer than two values"
            hint = "choose another --seed, --test-size, --cv or --label-share"
            problems.append(f"--targets {target.name}: {wrong}; {hint}")
    if problems:
        raise InputError(*problems)


def make_splits(subjects: Iterable[str], options: LabelOptions, seed: int) -> list[Split]:
    """Return one split of the subjects, or one for each fold; no subject is in two subsets."""
    ids = [*subjects]
    if options.cv is not None:
        splits = kfold(ids, options.cv, size=options.validation_size, seed=seed)
    else:
        splits = [make_split(ids, (options.test_size, options.validation_size), seed)]
    return [_with_few_labels(split, options.label_share, seed) for split in splits]


def _with_few_labels(split: Split, share: float, seed: int) -> Split:
    """Return a split without the training subjects whose labels are not used."""
    train = generator(seed, "labels").permutation(split.ids("train"))
    dropped = set(train[max(round(share * len(train)), 2) :])
    return restricted(split, [subject for subject in split.sample_ids if subject not in dropped])
