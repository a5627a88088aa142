"""The folds of a run: a study that is divided into splits, and the folder of each split."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from aam.config import NO_TREE, DataConfig, FineTuneConfig, PretrainConfig, TrainConfig
from aam.data.checks import shares_in_words
from aam.data.donors import divided_donors
from aam.data.inputs import Inputs
from aam.data.loader import Loader
from aam.data.region import RegionProfile
from aam.data.splits import SUBSETS, Split, duplicates_across_subsets, fold_folder, write_split
from aam.data.study import MetadataColumns, Study, make_study
from aam.data.targets import Covariates, Targets
from aam.device.distributed import SINGLE, World
from aam.device.platform import Facts, device_name
from aam.encoders import model_folder
from aam.engine.logger import Record
from aam.engine.run import LAST, MODEL, describe, training_outputs
from aam.errors import InputError, short, shown
from aam.files.output_folder import DOME, FIGURES, PAGE
from aam.options import IN_MEMORY, to_dict
from aam.predict.blend import Blend
from aam.predict.description import InputOptions, Notes
from aam.predict.network import Network
from aam.predict.saved_model import SavedModel, encoder_folder, load_model, save_model
from aam.training.inference import EncodedAsvs, Encoder

log = logging.getLogger("aam")

NO_TARGETS, NO_COVARIATES, NO_NOTES = Targets(()), Covariates(), Notes()

Config = TypeVar("Config", PretrainConfig, FineTuneConfig)


@dataclass(frozen=True, eq=False)
class Folds(Generic[Config]):
    """A study that is divided into splits, and how a model of each is learned.

    Attributes
    ----------
    config : PretrainConfig or FineTuneConfig
        With all that inputs decide.
    data : DataConfig
        Options of the inputs.
    study : Study
    splits : tuple of Split
        One, or one for each fold.
    device : torch.device
    world : World
    decisions : dict
        What this machine decides of a network.
    epochs : int
        The most epochs that a network trains; 0 without one.
    strong_baselines : bool
        Whether the report compares the model with strong baselines too.
    encoded : EncodedAsvs
        Vectors of ASVs that folds with the same frozen encoder share.
    """

    config: Config
    data: DataConfig
    study: Study
    splits: tuple[Split, ...]
    device: torch.device
    world: World = SINGLE
    decisions: Facts = field(default_factory=dict)
    epochs: int = 0
    strong_baselines: bool = False
    encoded: EncodedAsvs = field(default_factory=EncodedAsvs)

    def folder(self, path: Path, split: Split) -> Path:
        """The folder of a split in the run directory `path`, which is that itself without folds."""
        is_fold = self.data.cv is not None and split in self.splits
        return path / fold_folder(split.test_fold) if is_fold else path

    def name(self, split: Split) -> str:
        """Name of a split."""
        if not split.test_fold:
            return "samples"
        number, total = self.splits.index(split) + 1, len(self.splits)
        return f"fold {short(split.test_fold)} ({number} of {total})"

    def sizes(self, split: Split) -> str:
        """Numbers of samples and groups that are learned from, validated on and predicted."""
        column, parts = self.data.group_column, list[str]()
        verbs = ("learns from", "is validated on", "predicts")
        # Only the first part names the units.
        unit, groups_unit = " samples", f" {column}"
        for verb, subset in zip(verbs, SUBSETS, strict=True):
            if ids := split.ids(subset):
                groups = self.study.column(column, ids)
                number = "" if groups is None else f" ({len(set(groups))}{groups_unit})"
                parts.append(f"{verb} {len(ids)}{unit}{number}")
                unit = groups_unit = ""
        return ", ".join(parts)

    @property
    def sizes_by_name(self) -> dict[str, str]:
        """`sizes` of each split by `name`."""
        return {self.name(split): self.sizes(split) for split in self.splits}

    def describe(self) -> list[str]:
        """The sizes of each split and the most steps that a network trains, for ``--dry-run``."""
        self.warn_of_leaks()
        lines = [f"{name}: {sizes}" for name, sizes in self.sizes_by_name.items()]
        train = self.config.train
        for place, split in enumerate(self.splits if self.epochs else ()):
            rows = self.study.rows(split.ids("train"))
            loader = Loader(
                self.study, rows, train.samples_per_batch, shuffle=True, world=self.world
            )
            steps = math.ceil(len(loader) / train.gradient_accumulation_steps)
            plural = "s" if steps > 1 else ""
            lines[place] += f"; at most {self.epochs} epochs of {steps} step{plural}"
        return lines

    def warn_of_leaks(self) -> list[str]:
        """Log samples that are in two subsets of a split under different names, and columns that
        may name donors and are divided by a split.
        """
        study = self.study
        warnings = duplicates_across_subsets(study.table, self.splits)
        if study.metadata is not None and isinstance(self.config, FineTuneConfig):
            targets = self.config.targets.metadata_column
            warnings += divided_donors(study.table, study.metadata, self.splits, self.data, targets)
        for message in warnings:
            log.warning("warning: %s", message)
        return warnings

    def rank_problems(self) -> list[str]:
        """Subsets of fewer samples than there are ranks."""
        ranks, problems = self.world.size, []
        for split in self.splits:
            where = f"fold {short(split.test_fold)}: " if split.test_fold else ""
            for subset in SUBSETS[:2]:
                if 0 < (size := len(split.ids(subset))) < ranks:
                    text = f"the {subset} subset has {size} samples for {ranks} devices"
                    problems.append(f"{where}{text}; take fewer devices")
        return problems

    @property
    def inputs_in_words(self) -> str:
        """Device, samples, features and depth."""
        (samples, asvs), depth = self.study.table.shape, self.study.depth
        ranks = f" x {self.world.size}" if self.world.size > 1 else ""
        machine = f"{device_name(self.device)}{ranks}"
        return f"{machine}; {samples} samples, {asvs} ASVs, rarefied to {depth} reads"

    @property
    def inputs_by_name(self) -> dict[str, Any]:
        """Table, samples, features and depth, as a report shows them."""
        data, (samples, asvs) = self.config.data, self.study.table.shape
        return {
            "table": data.table or shown(data.tables, 20),
            "samples": samples,
            "ASVs": asvs,
            "rarefaction depth": self.study.depth,
            "samples below the depth": len(self.study.dropped),
            "largest features": shares_in_words(self.study.table),
        }

    def folders(self, path: Path) -> dict[str, Path]:
        """The folder of each split in the run directory `path`, by fold."""
        names = [f"fold {split.test_fold}" if split.test_fold else "" for split in self.splits]
        return {n: self.folder(path, split) for n, split in zip(names, self.splits, strict=True)}

    def model(
        self,
        ids: Sequence[str],
        blend: Blend,
        encoder: Encoder | None = None,
        targets: Targets = NO_TARGETS,
        covariates: Covariates = NO_COVARIATES,
        notes: Notes = NO_NOTES,
    ) -> SavedModel:
        """The model of a blend that has learned from the samples `ids`, and its encoder before."""
        study, seen, labelled = self.study, set(ids), set(ids if targets.specs else ())
        if encoder is not None:
            seen, labelled = seen | encoder.seen, labelled | encoder.labelled
        columns = study.table.columns_of(study.rows(ids))
        saved = SavedModel(
            data=InputOptions.of(self.data),
            model=self.config.model,
            depth=study.depth,
            seed=study.seed,
            profile=RegionProfile.fit([study.table.names[column] for column in columns]),
            notes=replace(
                notes, seen_samples=tuple(sorted(seen)), labelled_samples=tuple(sorted(labelled))
            ),
            targets=targets,
            covariates=covariates,
            blend=blend,
        )
        if saved.estimator is None:
            return saved
        notes = replace(saved.notes, best_epoch=saved.estimator.fitted_.best_epoch)
        return replace(saved, notes=notes, reference=study.reference)

    def by_folder(self, path: Path) -> dict[Path, Split]:
        """The split of each folder in the run directory `path`."""
        return {self.folder(path, split): split for split in self.splits}

    def title(self, command: str, split: Split) -> str:
        """Name of the training on a split in the log."""
        if self.data.cv is None:
            return command
        is_fold = split in self.splits
        return f"{command} {f'fold {short(split.test_fold)}' if is_fold else 'on all samples'}"

    def write_split(self, split: Split, folder: Path) -> None:
        """Write the split.tsv of a split, and log its sizes; that of all samples has none."""
        if not self.world.is_main:
            return
        if split not in self.splits:
            text = "model/ learns from all %d samples; its results are those of the folds"
            log.info(text, len(split.sample_ids))
            return
        write_split(folder / "split.tsv", split)
        if self.data.cv is not None:
            log.info("%s: %s", self.name(split), self.sizes(split))

    def record(self, command: str, inputs: Inputs | None = None) -> Record:
        """Content of run.json; `inputs` are those of memory, if any."""
        study, data = self.study, self.data
        facts = {"device": str(self.device), "ranks": self.world.size, "depth": study.depth}
        facts |= {"dropped_samples": study.dropped, "decisions": self.decisions}
        facts |= {
            "excluded_samples": study.in_state("excluded"),
            "left_out_classes": study.left_out,
        }
        files, outputs = _files(self.config.train, data), _outputs(data)
        in_memory = None if inputs is None else inputs.checksums(data)
        return describe(command, to_dict(self.config), files, facts, outputs, in_memory)


def save_models(path: Path, saved: SavedModel, trained: SavedModel) -> None:
    """Save a model in the folder of a run and, if a network was `trained` for it, that with its
    last weights.
    """
    if (estimator := trained.estimator) is not None:
        network, last_weights = estimator.network, estimator.fitted_.last_weights
        best = {name: value.clone() for name, value in network.state_dict().items()}
        network.load_state_dict(last_weights)
        save_model(path / LAST, trained.only(Network.name))
        network.load_state_dict(best)
    save_model(path / MODEL, saved)


def losses_in_words(study: Study, train: TrainConfig) -> list[str]:
    """The losses without labels that have a weight above 0."""
    has_distances = study.metric is not None and train.penalty > 0
    names = [str(study.metric)] if has_distances else []
    names += ["masked nucleotides"] if train.nuc_penalty > 0 else []
    return names + (["masked counts"] if train.count_penalty > 0 else [])


def with_encoder(config: Config) -> tuple[Config, SavedModel | None]:
    """The options with the sizes and the depth of the pretrained encoder, and the encoder, if any.

    `InputError` for sizes that contradict it, and for an encoder without a network.
    """
    folder = encoder_folder(config.train, "*")
    if folder is None:
        return config, None
    encoder = load_model(folder, torch.device("cpu"))
    encoder.require_network()
    if problems := config.model.encoder_problems(encoder.model):
        raise InputError(*problems)
    data = replace(config.data, rarefy_depth=config.data.rarefy_depth or encoder.depth)
    return replace(config, model=encoder.model, data=data), encoder


def study_for(
    config: Config,
    data: DataConfig,
    inputs: Inputs,
    columns: MetadataColumns,
    encoder: SavedModel | None,
) -> tuple[Config, Study]:
    """The study of a run, as its encoder reads it, and the options with its longest sequence."""
    study = make_study(inputs, data, config.model.max_bp, config.runtime.seed, columns)
    model = replace(config.model, max_bp=config.model.max_bp or study.longest)
    if encoder is not None:
        study = study.placed_on(encoder.reference)
        for sentence in encoder.profile.compare(study.table):
            log.warning("warning: --pretrained-encoder: %s", sentence)
    return replace(config, model=model), study


def _files(train: TrainConfig, data: DataConfig) -> dict[str, Path]:
    """The files that a run reads, by option."""
    encoder, values = train.pretrained_encoder, dict[str, Any](vars(data))
    values["pretrained_encoder"] = None if encoder is None else model_folder(encoder)
    values |= {f"table {number}": path for number, path in enumerate(data.tables, 1)}
    for number, tree in enumerate(data.trees, 1):
        values[f"tree {number}"] = None if tree == NO_TREE else Path(tree)
    paths = {name: path for name, path in values.items() if isinstance(path, Path)}
    return {name: path for name, path in paths.items() if path != IN_MEMORY}


def _outputs(data: DataConfig) -> list[str]:
    """Names of what a run may write, next to those of every run."""
    outputs = ["predictions.tsv", "report.html", PAGE, DOME, *FIGURES]
    for folder in [""] if data.cv is None else ["", "fold-*/"]:
        outputs.append(f"{folder}split.tsv")
        outputs += training_outputs(folder, ("model.json",))
    return outputs
