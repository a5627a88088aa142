"""Prints the tables of docs/results.md: ``AAM_BENCH_DATA=DATA python docs/results.py FOLDER``
trains what they are of.

A run whose metrics.json is in FOLDER is not made again. An hour of one processor where there is
none.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

DATA = Path(os.environ.get("AAM_BENCH_DATA", "DATA"))
TABLE = "--table {0}/table.biom --metadata {0}/metadata.tsv"
ARTIFACTS = (
    "--table {0}/table.qza --sequences {0}/rep-seqs.qza --tree {0}/rooted-tree.qza "
    "--metadata {0}/metadata.tsv"
)
CHILDREN = f"{TABLE} --tree {{0}}/tree.nwk --group-column host_subject_id"
FOLDS = "--missing drop --cv fold --rarefy-depth 1000"

# What is predicted and the metric that decides: the study, and the options beside `FOLDS`.
ROWS = {
    "age of infants in months, MAE": ("infant-age", f"{CHILDREN} --metadata-column month"),
    "delivery of infants (with their diet), AUROC": (
        "infant-age",
        f"{CHILDREN} --metadata-column delivery --categorical-columns diet",
    ),
    "diet of infants, AUROC": ("infant-age", f"{CHILDREN} --metadata-column diet"),
    "sex of infants, AUROC": ("infant-age", f"{CHILDREN} --metadata-column sex"),
    "body site of mackerel, accuracy": (
        "mackerel-type",
        f"{TABLE} --group-column fish --metadata-column sample_type",
    ),
    "season of mackerel, accuracy": (
        "mackerel-type",
        f"{TABLE} --group-column fish --metadata-column season",
    ),
    "braces of students, AUROC": ("braces", f"{TABLE} --metadata-column braces"),
    "sex of students, AUROC": ("braces", f"{TABLE} --metadata-column sex"),
    "sex of adults, AUROC": (
        "qiime2-crc",
        f"{ARTIFACTS} --group-column subject --metadata-column sex",
    ),
    "bowel disease (trap: depth), AUROC": (
        "ibd",
        f"{TABLE} --group-column host_subject_id --metadata-column ibd",
    ),
    "age in nine studies (trap: study), MAE": (
        "oral-age",
        f"{TABLE} --metadata-column age --batch-column study",
    ),
}

# The diseases of `cohorts` whose studies are held out whole: their cohorts in the column `disease`.
COHORTS = {
    "inflammatory bowel disease": (
        "IBD_Crohn_disease",
        "IBD_Ulcerative_Colitis",
        "IBD_Inflammtory_bowel_disease",
    ),
    "Parkinson's disease": ("Parkinson",),
    "obesity": ("Obesity",),
    "irritable bowel syndrome": ("Irritable_bowel_syndrom",),
    "autism": ("Autism",),
}

# The shares of labels and the seeds of the table of few labels, and the learned baseline that
# stands beside.
SHARE, SEEDS = 0.1, (0, 1, 2)
LINEAR, DEPTH = "linear model of presence", "depth and richness alone"
SIMPLE = (
    "the training median",
    "the majority class",
    "depth alone",
    "richness alone",
    DEPTH,
    "covariates alone",
)


def metrics_of(options: str, output: Path) -> Mapping[str, Any]:
    """Return metrics.json of the one target of a run, which is made if it is not there, with what
    it cost.
    """
    cost, result = output.with_suffix(".cost.json"), output / "metrics.json"
    if not result.is_file():
        words = [
            sys.executable,
            "-m",
            "aam",
            "train",
            *shlex.split(options),
            "--output-dir",
            str(output),
        ]
        print(shlex.join(words[1:]), file=sys.stderr, flush=True)
        _, status, used = os.wait4(os.posix_spawn(words[0], words, os.environ), 0)
        if status:
            sys.exit(f"{output.name}: exit status {os.waitstatus_to_exitcode(status)}")
        cost.write_text(
            json.dumps({"seconds": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss / 1e6})
        )
    (target,) = json.loads(result.read_text())["targets"].values()
    return {**target, **json.loads(cost.read_text())}


def text(value: float | None) -> str:
    """Format a metric: three digits below 1, two from 1 on."""
    if value is None:
        return "-"
    return "<0.001" if value < 0.0005 else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def row(name: str, target: Mapping[str, Any]) -> str:
    """Return what a target has beside its best learned baseline, the linear one, depth and
    guessing.
    """
    key = name.rpartition(", ")[2].lower()
    model = target["metrics"][key]
    values = {name: baseline[key] for name, baseline in target["baselines"].items()}
    learned = {name: value for name, value in values.items() if name not in SIMPLE}
    best = (min if key == "mae" else max)(learned, key=learned.__getitem__)
    guessing = next(name for name in values if name in SIMPLE[:2])
    limits = f"{text(model['value'])} ({text(model['low'])} to {text(model['high'])})"
    cells = [
        name,
        limits,
        f"{text(values[best])} ({best})",
        text(target["tests"][best]["corrected_p"]),
        text(values[LINEAR]),
        text(values.get(DEPTH)),
        text(values[guessing]),
        text(target["tests"][guessing]["p"]),
        f"{target['seconds']:.0f} s, {target['memory']:.1f} GB",
    ]
    return f"| {' | '.join(cells)} |"


def new_study(name: str, folder: Path) -> str:
    """Return how well a disease is predicted in studies that were held out whole, each alike."""
    study = DATA / "cohorts"
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str)
    path = folder / f"new-{COHORTS[name][0]}.tsv"
    metadata[metadata["disease"].isin(COHORTS[name])].to_csv(path, sep="\t", index=False)
    options = (
        f"--table {study}/table.biom --metadata {path} --missing drop --metadata-column status"
    )
    target = metrics_of(f"{options} --study-column study --rarefy-depth 1000", path.with_suffix(""))
    values = [part["auroc"] for part in target["parts"]["study"].values()]
    cells = [
        name,
        f"{len(values)}",
        text(sum(values) / len(values)),
        f"{text(min(values))} to {text(max(values))}",
    ]
    return f"| {' | '.join(cells)} | {target['seconds']:.0f} s, {target['memory']:.1f} GB |"


def few_labels(folder: Path) -> Iterator[str]:
    """Yield, for each seed and their mean, the errors of infants' age from a share of the labels of
    each fold.
    """
    study = DATA / "infant-age"
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str)
    rows = []
    for seed in SEEDS:
        totals, samples = dict.fromkeys(("the model", LINEAR, DEPTH), 0.0), 0
        for fold in sorted(set(metadata["fold"])):
            tested = metadata["fold"] == fold
            left = metadata[~tested].sample(frac=SHARE, random_state=seed)
            path = folder / f"few-{seed}-{fold}.tsv"
            pd.concat([left, metadata[tested]]).to_csv(path, sep="\t", index=False)
            options = (
                f"--table {study}/table.biom --tree {study}/tree.nwk --metadata {path} "
                "--group-column host_subject_id"
            )
            options += (
                f" --metadata-column month --missing drop --seed {seed} --split-column "
                f"fold --test-fold {fold}"
            )
            target = metrics_of(f"{options} --rarefy-depth 1000", path.with_suffix(""))
            values = {"the model": target["metrics"]["mae"]["value"]}
            values |= {
                name: one["mae"] for name, one in target["baselines"].items() if name in totals
            }
            totals = {name: total + values[name] * tested.sum() for name, total in totals.items()}
            samples += tested.sum()
        rows.append([total / samples for total in totals.values()])
        yield f"| {seed} | {' | '.join(map(text, rows[-1]))} |"
    yield (
        "| mean | "
        f"{' | '.join(text(sum(column) / len(column)) for column in zip(*rows, strict=True))} |"
    )


def main() -> None:
    """Make the runs, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the runs")
    folder = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print(
        "| | `aam train` | best learned baseline | p of the difference | linear model of presence "
        "| depth and richness alone | guessing | p against guessing | processor time, memory |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for number, (name, (study, options)) in enumerate(ROWS.items()):
        words = f"{options.format(DATA / study)} {FOLDS}"
        print(row(name, metrics_of(words, folder / f"{number:02}-{study}")), flush=True)
    print("\n| disease | studies | AUROC, mean over studies | from, to | processor time, memory |")
    print("|---|---|---|---|---|")
    for name in COHORTS:
        print(new_study(name, folder), flush=True)
    print(
        f"\n| seed | {SHARE:.0%} of the labels: `aam train` | {LINEAR} | {DEPTH} "
        "|\n|---|---|---|---|"
    )
    print(*few_labels(folder), sep="\n")


if __name__ == "__main__":
    main()
