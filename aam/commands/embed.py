"""`aam embed`: vectors of samples and ASVs."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.commands.apply import check_paths, load_table, prepare_models
from aam.config_commands import EmbedConfig
from aam.engine.run_directory import check_output
from aam.errors import InputError
from aam.runtime.files import atomic_file, atomic_folder, write_text
from aam.training.inference import encode_table, run_model
from aam.training.saved_model import SavedModel

log = logging.getLogger("aam")


def _write_vectors(folder: Path, name: str, ids: Sequence[str], vectors: npt.NDArray[np.float32], form: str) -> None:
    if form == "npy":
        with atomic_file(folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, vectors, allow_pickle=False)
        write_text(folder / f"{name}.ids.txt", "".join(f"{identifier}\n" for identifier in ids))
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    writer.writerow(["sample-id" if name == "samples" else "asv", *(f"d{i}" for i in range(vectors.shape[1]))])
    writer.writerows(
        [identifier, *(f"{value:.6g}" for value in row)] for identifier, row in zip(ids, vectors, strict=True)
    )
    write_text(folder / f"{name}.tsv", text.getvalue())


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of samples, float32 ``[N, D]``, and of ASVs, float32 ``[F, D]``, with their ids and sequences."""

    sample_ids: tuple[str, ...]
    samples: npt.NDArray[np.float32]
    sequences: tuple[str, ...]
    asvs: npt.NDArray[np.float32]


def embed_samples(models: Sequence[SavedModel], config: EmbedConfig) -> Vectors:
    """Return the vectors of every sample of a table that reaches the depth, and of every ASV.

    Raises
    ------
    InputError
        Several models, or a bad table.
    """
    if len(models) > 1:
        raise InputError(f"--model: {len(models)} models, each with vectors of its own; name one of them")
    (saved,) = models
    study, _ = load_table(models, config)
    device = next(saved.network.parameters()).device
    asvs = encode_table(saved.network, study, device, config.runtime)
    study = replace(study, **saved.covariates.encode(None, study.table.sample_ids))
    rows = np.arange(len(study.table.sample_ids))
    samples = run_model(saved.network, study, rows, device, config.runtime, asvs=asvs)
    return Vectors(
        samples.sample_ids, samples.samples.astype(np.float32), study.table.sequences, asvs.vectors.cpu().numpy()
    )


def embed_table(config: EmbedConfig) -> None:
    """Write the vectors of every sample that reaches the depth, and of every ASV."""
    *_, folder = check_paths(config, model=config.model, table=config.table, output_dir=config.runtime.output_dir)
    check_output(folder, config.runtime.overwrite)
    vectors = embed_samples(prepare_models(config.model, config.runtime), config)
    with atomic_folder(folder) as new:
        _write_vectors(new, "samples", vectors.sample_ids, vectors.samples, config.format)
        _write_vectors(new, "asvs", vectors.sequences, vectors.asvs, config.format)
    log.info("%s: %d samples and %d ASVs", folder, len(vectors.sample_ids), len(vectors.sequences))
