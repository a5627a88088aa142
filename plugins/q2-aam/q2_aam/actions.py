"""What the actions of the plugin do: the functions of the commands on the files of artifacts."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import skbio
from qiime2 import Metadata

from aam.api.apply import predict_table
from aam.api.evaluation import evaluate_table
from aam.api.explanation import explain_model
from aam.api.models import load
from aam.api.training import run_pretraining, run_training
from aam.api.unifrac import unifrac
from aam.config import (
    EmbedConfig,
    EvaluateConfig,
    ExplainConfig,
    FineTuneConfig,
    PredictConfig,
    PretrainConfig,
    UnifracConfig,
)
from aam.engine.signals import interrupts_as_in_python
from aam.options import configured
from q2_aam.formats import EncoderFolderFormat, SampleTableFormat, TargetsFolderFormat
from q2_aam.parameters import Parameters

MACHINE = ("seed", "threads", "device")
TREE = ("unifrac_metric", "missing_tips", "midpoint_root")
NETWORK = (
    "embedding_dim",
    "attention_layers",
    "attention_heads",
    "epochs",
    "batch_size",
    "lr",
    "patience",
)

PRETRAIN = Parameters(PretrainConfig(), "rarefy_depth", *NETWORK, *TREE, *MACHINE)
FIT = Parameters(
    FineTuneConfig(),
    "rarefy_depth",
    *NETWORK,
    "missing",
    "missing_tips",
    "midpoint_root",
    "freeze_base",
    "test_size",
    "validation_size",
    *MACHINE,
)
CROSS_VALIDATE = Parameters(
    FineTuneConfig(),
    "cv",
    "rarefy_depth",
    *NETWORK,
    "missing",
    "missing_tips",
    "midpoint_root",
    "freeze_base",
    "classifier",
    "validation_size",
    *MACHINE,
)
PREDICT = Parameters(PredictConfig(), "prediction_passes", "trim", "threads", "device")
EMBED = Parameters(EmbedConfig(), "rarefy_depth", "trim", "threads", "device")
EVALUATE = Parameters(EvaluateConfig(), "prediction_passes", "trim", "threads", "device")
EXPLAIN = Parameters(ExplainConfig(), "prediction_passes", "top", "threads", "device")
UNIFRAC = Parameters(
    UnifracConfig(),
    "unifrac_metric",
    "alpha",
    "root_length",
    "missing_tips",
    "midpoint_root",
    "rarefy_depth",
    "seed",
    "threads",
    "device",
)

TARGET, GROUP = "target", "group"


def _path(view: Any) -> Path | None:
    return None if view is None else Path(str(view))


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="aam-") as folder, interrupts_as_in_python():
        yield Path(folder)


def _metadata(arguments: dict[str, Any], folder: Path) -> tuple[Path, str, str | None]:
    """Write the column of targets, and that of groups, as metadata; return file, target column and
    group column.
    """
    column, groups = arguments["metadata"], arguments.get("groups")
    table = Metadata(column.to_dataframe())
    group = None
    if groups is not None:
        frame = groups.to_dataframe()
        group = (
            str(frame.columns[0]) if frame.columns[0] != column.name else f"{column.name}-groups"
        )
        table = table.merge(Metadata(frame.set_axis([group], axis=1)))
    table.save(str(folder / "metadata.tsv"))
    return folder / "metadata.tsv", column.name, group


def _with_files(config: Any, arguments: dict[str, Any], output: Path, **data: Any) -> Any:
    """Return the configuration of a training with the files of the artifacts."""
    files = {
        "table": _path(arguments["table"]),
        "sequences": _path(arguments["sequences"]),
        "tree": _path(arguments["phylogeny"]),
    }
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, **files, **data),
        runtime=dataclasses.replace(config.runtime, output_dir=output),
    )


def pretrain(arguments: dict[str, Any]) -> EncoderFolderFormat:
    """Pretrain an encoder and return its folder."""
    with _scratch() as folder:
        config = configured(PretrainConfig(), PRETRAIN.options(arguments), "pretrain")
        config = _with_files(config, arguments, folder / "run")
        run_pretraining(config, report=False)
        result = EncoderFolderFormat()
        shutil.copytree(folder / "run" / "model", str(result), dirs_exist_ok=True)
    return result


def _fitted(arguments: dict[str, Any], classifier: bool) -> TargetsFolderFormat:
    """Train a model of a column and return its folder."""
    result = TargetsFolderFormat()
    with _scratch() as folder:
        # With a test subset the report is what fits the intervals.
        run_folder = _train(arguments, FIT, folder, report=True, classifier=classifier)
        shutil.copytree(run_folder / "model", str(result), dirs_exist_ok=True)
    return result


def _train(
    arguments: dict[str, Any], parameters: Parameters, folder: Path, report: bool, **targets: Any
) -> Path:
    """Run `aam train` on artifacts and return the folder of the run."""
    config = configured(FineTuneConfig(), parameters.options(arguments), "fit")
    metadata, target, group = _metadata(arguments, folder)
    config = _with_files(config, arguments, folder / "run", metadata=metadata, group_column=group)
    config = dataclasses.replace(
        config,
        targets=dataclasses.replace(config.targets, metadata_column=(target,), **targets),
        train=dataclasses.replace(config.train, pretrained_encoder=_path(arguments["encoder"])),
    )
    run_training(config, report=report)
    return folder / "run"


def fit_regressor(arguments: dict[str, Any]) -> TargetsFolderFormat:
    """Train a model of a numeric column and return its folder."""
    return _fitted(arguments, classifier=False)


def fit_classifier(arguments: dict[str, Any]) -> TargetsFolderFormat:
    """Train a model of a categorical column and return its folder."""
    return _fitted(arguments, classifier=True)


def cross_validate(arguments: dict[str, Any]) -> None:
    """Cross-validate a model and show its report."""
    with _scratch() as folder:
        _show(_train(arguments, CROSS_VALIDATE, folder, report=True), Path(arguments["output_dir"]))


def _show(folder: Path, output: Path) -> None:
    """Copy the report of a run, and the files that belong to it, to a visualization."""
    for path in sorted(folder.iterdir()):
        if path.name in ("report.html", "explain.html"):
            shutil.copyfile(path, output / "index.html")
        elif (
            path.name in ("predictions.tsv", "metrics.json", "run.json", "split.tsv")
            or path.suffix == ".tsv"
        ):
            shutil.copyfile(path, output / path.name)
        elif (
            path.is_dir()
            and path.name not in ("model", "last", "tensorboard")
            and not path.name.startswith("fold-")
        ):
            shutil.copytree(path, output / path.name)
    if not (output / "index.html").exists():
        raise ValueError(f"{folder} holds no report")


def _apply(default: Any, parameters: Parameters, arguments: dict[str, Any], where: str) -> Any:
    """Return the options of a command that applies a model to a table."""
    config = configured(default, parameters.options(arguments), where)
    files = {"model": (_path(arguments["sample_estimator"]),), "table": _path(arguments["table"])}
    return dataclasses.replace(config, **files, sequences=_path(arguments["sequences"]))


def predict(arguments: dict[str, Any]) -> SampleTableFormat:
    """Predict the samples of a table."""
    result = SampleTableFormat()
    with _scratch() as folder:
        config = _apply(PredictConfig(), PREDICT, arguments, "predict")
        config = dataclasses.replace(config, predict_unlike=True)
        predict_table(dataclasses.replace(config, output=folder / "predictions.tsv"))
        shutil.copyfile(folder / "predictions.tsv", str(result))
    return result


def embed(arguments: dict[str, Any]) -> SampleTableFormat:
    """Return the vectors of the samples of a table."""
    options = EMBED.options(arguments)
    model = load(str(arguments["encoder"]), device=options["device"], threads=options["threads"])
    result = SampleTableFormat()
    given = {name: options[name] for name in ("rarefy_depth", "trim")}
    vectors = model.embed(str(arguments["table"]), sequences=_path(arguments["sequences"]), **given)
    vectors.to_csv(str(result), sep="\t", float_format="%.6g")
    return result


def evaluate(arguments: dict[str, Any]) -> None:
    """Compare the predictions of a model with metadata and show the report."""
    with _scratch() as folder:
        metadata, _, group = _metadata(arguments, folder)
        config = _apply(EvaluateConfig(), EVALUATE, arguments, "evaluate")
        runtime = dataclasses.replace(config.runtime, output_dir=folder / "out")
        evaluate_table(
            dataclasses.replace(config, metadata=metadata, group_column=group, runtime=runtime)
        )
        _show(folder / "out", Path(arguments["output_dir"]))


def explain(arguments: dict[str, Any]) -> None:
    """Show which ASVs drive the predictions of a model."""
    with _scratch() as folder:
        metadata, _, group = _metadata(arguments, folder)
        config = _apply(ExplainConfig(), EXPLAIN, arguments, "explain")
        runtime = dataclasses.replace(config.runtime, output_dir=folder / "out")
        explain_model(
            dataclasses.replace(config, metadata=metadata, group_column=group, runtime=runtime)
        )
        _show(folder / "out", Path(arguments["output_dir"]))


def unifrac_distances(arguments: dict[str, Any]) -> skbio.DistanceMatrix:
    """Return UniFrac distances between the samples of a table."""
    options = UNIFRAC.options(arguments)
    metric = options.pop("unifrac_metric")
    if metric == "faith_pd":
        raise ValueError("faith_pd is no distance; take q2-diversity's alpha-phylogenetic")
    return unifrac(str(arguments["table"]), str(arguments["phylogeny"]), metric, **options)
