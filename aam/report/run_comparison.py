"""Several runs side by side: their metrics, paired differences on the samples of both, and the
options that differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from aam.data.splits import complete_groups
from aam.engine.run import Record, flatten, read_record
from aam.errors import InputError, shown
from aam.evaluate.comparison import (
    SIGNIFICANT,
    Baseline,
    Comparison,
    compare_with_baselines,
    headline,
    holm,
)
from aam.evaluate.intervals import Interval, number, too_few, with_limits
from aam.evaluate.metrics import LOWER_IS_BETTER, TITLES, Array
from aam.evaluate.predictions import PredictionTable, read_predictions
from aam.evaluate.target_predictions import TargetPredictions
from aam.files.atomic import read_json
from aam.files.output_folder import RUN
from aam.io.metadata import Metadata
from aam.predict.baselines import rows_for, truth_of
from aam.report.charts import Figure, IntervalRow, interval_chart, listed
from aam.report.report_html import facts_table, page
from aam.report.tables import Table
from aam.report.training_figures import loss_figures, read_epochs

# Options that name files, or the place of a run, differ between any two runs.
PLACES = ("output_dir", "overwrite", "resume_from")


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory, or the output of `aam evaluate`: metrics.json, and what else there is of it.

    `record` is run.json, empty without one; `targets` are those of metrics.json; `epochs` records
    of its training.
    """

    name: str
    folder: Path
    metrics: Mapping[str, Any]
    predictions: PredictionTable | None
    record: Record = field(default_factory=dict)
    epochs: Mapping[str, Sequence[Record]] = field(default_factory=dict)

    @property
    def targets(self) -> Mapping[str, Any]:
        """The targets of metrics.json."""
        return dict(self.metrics.get("targets", {}))

    def option(self, section: str, name: str) -> Any:
        """Return the value of an option of the run, None where it is not known."""
        options = self.record.get("config", {}).get(section)
        return options.get(name) if isinstance(options, dict) else None


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are all different."""
    for parts in range(1, max(len(folder.resolve().parts) for folder in folders) + 1):
        names = ["/".join(folder.resolve().parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    raise InputError(f"the same run twice: {shown([str(folder) for folder in folders])}")


def read_runs(folders: Sequence[Path], metadata: Metadata | None) -> list[Run]:
    """Read what runs have written.

    Raises
    ------
    InputError
        A folder without metrics.json, named with all others, one of another kind, or the same
        folder twice.
    """
    problems = [
        f"{folder}: no metrics.json; expected the --output-dir of aam train, pretrain or evaluate"
        for folder in folders
        if not (folder / "metrics.json").is_file()
    ]
    if problems:
        raise InputError(*problems)
    runs = []
    for name, folder in zip(_names(folders), folders, strict=True):
        path, record = folder / "predictions.tsv", folder / RUN
        parts = {part.name: part for part in sorted(folder.glob("fold-*")) if part.is_dir()} or {
            "": folder
        }
        runs.append(
            Run(
                name,
                folder,
                _metrics(folder / "metrics.json"),
                read_predictions(path, () if metadata is None else metadata.columns)
                if path.is_file()
                else None,
                read_record(record) if record.is_file() else {},
                {f"{name} {part}".strip(): read_epochs(place) for part, place in parts.items()},
            )
        )
    return runs


def _metrics(path: Path) -> Mapping[str, Any]:
    """Return a metrics.json; raise `InputError` where targets and tables in it are not as aam
    writes them.
    """
    content: Any = read_json(path)
    try:
        for target in content.get("targets", {}).values():
            target.get("subset")
            for value in target["metrics"].values():
                _interval(value)
        for row in itertools.chain.from_iterable(content.get("tables", {}).values()):
            row.values()
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{path}: not the metrics of a run; expected targets and tables as aam writes them"
        ) from None
    return dict(content)


def _interval(value: Mapping[str, Any]) -> Interval:
    """Return a metric of metrics.json, in which NaN is null."""
    return Interval(
        *(
            math.nan if value.get(part) is None else float(value[part])
            for part in ("value", "low", "high")
        )
    )


def _paired(
    runs: Sequence[Run], target: str, metadata: Metadata | None, group: str | None
) -> list[Comparison] | None:
    """Return each later run beside the first one on the samples that both predict; None without
    truth.

    Where runs are cross-validated, ranks are compared inside the folds of both, and p counts for
    less, as in the report of one run. Raises `InputError` for samples without a group, which would
    all count as one.
    """
    table = runs[0].predictions
    spec = None if table is None else table.spec(target)
    if metadata is None or table is None or spec is None or target not in metadata.columns:
        return None
    ids = [name for name in table.sample_ids if name in metadata]
    table = table.with_rows(ids, {})
    groups = None if group is None else np.array(complete_groups(metadata, group, ids))
    truth = truth_of(metadata, spec, ids)
    predictions = TargetPredictions(
        tuple(ids), truth, table.predicted(target), spec.labels, groups=groups
    )
    comparisons: list[Comparison] = []
    for run in runs[1:]:
        theirs = run.predictions
        same = None if theirs is None else theirs.spec(target)
        if theirs is not None and same is not None and same.labels == spec.labels:
            other = rows_for(Baseline(run.name, theirs.predicted(target)), theirs.sample_ids, ids)
            in_folds = replace(predictions, fold=_folds_of_both(table, theirs))
            comparisons += compare_with_baselines(in_folds, [other], seed=0)
    corrected = holm([one.p for one in comparisons])
    return [replace(one, corrected_p=p) for one, p in zip(comparisons, corrected, strict=True)]


def _folds_of_both(table: PredictionTable, other: PredictionTable) -> Array:
    """Return for each sample of `table` the pair of folds that held it out in both runs, [N] of
    text.
    """
    fold_of = dict(zip(other.sample_ids, other.folds, strict=True))
    return np.array(
        [
            f"{fold}/{fold_of.get(name, '')}"
            for name, fold in zip(table.sample_ids, table.folds, strict=True)
        ]
    )


def _sentence(first: str, one: Comparison, key: str, tests: int) -> str:
    """Return which of two runs does better, if either is shown to."""
    beside = (
        f"{TITLES[key]} {number(one.model[key])} against {number(one.metrics[key].value)} "
        f"on {one.samples} samples"
    )
    corrected = f", corrected for {tests} comparisons (Holm)" if tests > 1 else ""
    if math.isnan(one.corrected_p):
        return (
            f"Whether {first} or {one.name} does better is not tested ({beside}): "
            f"{too_few(one.groups)}."
        )
    if one.corrected_p > SIGNIFICANT:
        return (
            f"{first} and {one.name} are not shown to differ ({beside}; p "
            f"{number(one.corrected_p)}{corrected})."
        )
    better = (one.difference.value < 0) == (key in LOWER_IS_BETTER)
    names = (first, one.name) if better else (one.name, first)
    return (
        f"{names[0]} does better than {names[1]} ({beside}; p "
        f"{number(one.corrected_p)}{corrected})."
    )


def _run_figures(
    runs: Sequence[Run], target: str, key: str, pairs: Sequence[Comparison]
) -> list[Figure]:
    """Return the headline metric of each run, and the paired differences."""
    rows = [
        IntervalRow(run.name, _interval(run.targets[target]["metrics"][key]), at % 9)
        for at, run in enumerate(runs)
        if key in run.targets[target]["metrics"]
    ]
    if not rows:
        return []
    better = "lower is better" if key in LOWER_IS_BETTER else "higher is better"
    plots = [
        Figure(
            f"runs-{key}",
            f"{TITLES[key]} of each run",
            f"{TITLES[key]}, {better}: {listed(rows)}.",
            interval_chart(rows, f"{TITLES[key]} ({better})"),
            "Bars are 95 % intervals, each on the samples of its own run.",
        )
    ]
    if pairs:
        paired = [IntervalRow(one.name, one.difference, 1) for one in pairs]
        side = "Left" if key in LOWER_IS_BETTER else "Right"
        plots.append(
            Figure(
                f"paired-{key}",
                f"Paired differences to {runs[0].name}",
                f"The first minus each: {listed(paired)}.",
                interval_chart(
                    paired, f"{TITLES[key]} of {runs[0].name} minus that of the run", 0.0
                ),
                f"{side} of the line {runs[0].name} is better. Bars are paired 95 % intervals on "
                "the samples that both "
                "predict.",
            )
        )
    return plots


def _target_part(
    runs: Sequence[Run], target: str, metadata: Metadata | None, group: str | None
) -> dict[str, Any]:
    """Return what the page shows of one target."""
    having = [run for run in runs if target in run.targets]
    table = having[0].predictions
    spec = None if table is None else table.spec(target)
    key = headline(() if spec is None else spec.labels)
    if key not in having[0].targets[target]["metrics"]:
        # Without predictions.tsv the number of classes is not known.
        key = "accuracy"
    unseen = [run for run in having if run.targets[target].get("subset") != "training"]
    compared = unseen if unseen[:1] == having[:1] else having[:1]
    paired = _paired(compared, target, metadata, group)
    pairs = paired or []
    tests = sum(not math.isnan(one.p) for one in pairs)
    sentences = [_sentence(having[0].name, one, key, tests) for one in pairs]
    sentences += [
        f"{run.name} is compared with nothing: training has seen some of its samples."
        for run in having
        if run not in unseen and len(having) > 1
    ]
    sentences += [
        f"{run.name} is not compared with {having[0].name}: "
        + (
            "it has other classes."
            if run.predictions is not None
            else "its folder has no predictions.tsv."
        )
        for run in compared[1:]
        if paired is not None and run.name not in {one.name for one in pairs}
    ]
    if paired is None and len(compared) > 1:
        sentences.append(
            "Runs are not compared in pairs: --metadata names the file that holds the true values."
        )
    names = list(dict.fromkeys(name for run in having for name in run.targets[target]["metrics"]))
    rows = []
    for run in having:
        values = run.targets[target]["metrics"]
        cells = (with_limits(_interval(values[name])) if name in values else "-" for name in names)
        rows.append((run.name, str(run.targets[target].get("subset", "")), *cells))
    tables = [
        Table(
            "Metrics",
            ("run", "samples were", *(TITLES.get(name, name) for name in names)),
            tuple(rows),
            "metrics",
        )
    ]
    if pairs:
        body = tuple(
            (one.name, str(one.samples), with_limits(one.difference), number(one.corrected_p))
            for one in pairs
        )
        head = ("run", "samples of both", f"{TITLES[key]} of {having[0].name} minus it", "p")
        tables.append(Table(f"{having[0].name} beside the others", head, body, "baselines"))
    return {
        "name": target,
        "sentences": sentences,
        "tables": tables,
        "tiles": [],
        "hero": [],
        "figures": _run_figures(having, target, key, pairs),
    }


def _differing_options(runs: Sequence[Run]) -> list[Table]:
    """Return the options whose values are not the same in all runs that have a run.json, where two
    have one.
    """
    recorded = [run for run in runs if run.record]
    if len(recorded) < 2:
        return []
    flat = [flatten(run.record["config"]) for run in recorded]
    names = list(dict.fromkeys(name for options in flat for name in options))
    rows = []
    for name in names:
        values = [str(options.get(name, "-")) for options in flat]
        if len(set(values)) > 1 and name.rpartition(".")[2] not in PLACES:
            rows.append(("--" + name.rpartition(".")[2].replace("_", "-"), *values))
    return [Table("Options that differ", ("option", *(run.name for run in recorded)), tuple(rows))]


def compare_runs_html(
    runs: Sequence[Run], metadata: Metadata | None, group: str | None
) -> tuple[str, list[str]]:
    """Return the page that shows runs side by side, and its sentences for a terminal."""
    targets = list(dict.fromkeys(name for run in runs for name in run.targets))
    parts = [_target_part(runs, target, metadata, group) for target in targets]
    sentences = [f"{part['name']}: {sentence}" for part in parts for sentence in part["sentences"]]
    listed = shown([run.name for run in runs], 20)
    opening = [
        f"{len(runs)} runs side by side: {listed}. The first one is held against each of the "
        "others, on the samples "
        f"that both predict{f', over values of {group}' if group else ''}. What each of them is "
        "beside its baselines "
        "stands in its own report."
    ]
    text = page(
        title=f"{len(runs)} runs of aam" if len(runs) > 1 else f"A run of aam: {runs[0].name}",
        opening=opening,
        warnings=_warnings(runs),
        facts=[
            facts_table("Runs", {run.name: run.folder for run in runs}),
            *_differing_options(runs),
        ],
        tables=[table for run in runs for table in _encoder_tables(run)],
        encoder_figures=[],
        curves=[
            replace(figure, title=f"{run.name}: {figure.title}")
            for run in runs
            for figure in loss_figures(run.epochs)
        ],
        targets=parts,
        configuration={run.name: run.record.get("config", {}) for run in runs},
    )
    return text, sentences


def _encoder_tables(run: Run) -> list[Table]:
    """Return the tables of pretraining that metrics.json holds."""
    tables = []
    for title, rows in run.metrics.get("tables", {}).items():
        if rows:
            cells = tuple(tuple(str(cell) for cell in row.values()) for row in rows)
            tables.append(Table(f"{run.name}: {title}", tuple(rows[0]), cells, "agreement"))
    return tables


def _warnings(runs: Sequence[Run]) -> list[str]:
    """Return what makes runs hard to compare."""
    warnings = []
    subsets = {part.get("subset") for run in runs for part in run.targets.values()}
    if len(subsets) > 1:
        warnings.append(
            "The samples of these runs were not the same to their models: "
            f"{shown(sorted(map(str, subsets)))}."
        )
    depths = {run.name: run.record["depth"] for run in runs if "depth" in run.record}
    if len(set(depths.values())) > 1:
        listed = ", ".join(f"{name} {depth}" for name, depth in depths.items())
        warnings.append(
            f"Samples are rarefied to different depths ({listed}), so that different samples are "
            "left out."
        )
    return warnings
