"""Train the runs of docs/results.md and print its tables.

``AAM_BENCH_DATA=DATA python docs/results.py FOLDER``. Runs in FOLDER are not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
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
DEPTH = "--missing drop --rarefy-depth 1000"

# Task: (metric, study, options).
TASKS = {
    "age of infants": ("mae", "infant-age", f"{CHILDREN} --metadata-column month"),
    "delivery of infants, with their diet": (
        "auroc",
        "infant-age",
        f"{CHILDREN} --metadata-column delivery --categorical-columns diet",
    ),
    "body site of mackerel": (
        "accuracy",
        "mackerel-type",
        f"{TABLE} --group-column fish --metadata-column sample_type",
    ),
    "braces of students": ("auroc", "braces", f"{TABLE} --metadata-column braces"),
    "sex of students": ("auroc", "braces", f"{TABLE} --metadata-column sex"),
    "sex of adults": (
        "auroc",
        "qiime2-crc",
        f"{ARTIFACTS} --group-column subject --metadata-column sex",
    ),
    "bowel disease (trap: depth)": (
        "auroc",
        "ibd",
        f"{TABLE} --group-column host_subject_id --metadata-column ibd",
    ),
    "age in nine studies (trap: study)": (
        "mae",
        "oral-age",
        f"{TABLE} --metadata-column age --batch-column study",
    ),
}

# Disease: its values in the column `disease` of `cohorts`.
DISEASES = {
    "inflammatory bowel disease": (
        "IBD_Crohn_disease",
        "IBD_Ulcerative_Colitis",
        "IBD_Inflammtory_bowel_disease",
    ),
    "Parkinson's disease": ("Parkinson",),
    "obesity": ("Obesity",),
    "irritable bowel syndrome": ("Irritable_bowel_syndrom",),
    "autism": ("Autism",),
    "schizophrenia": ("Schizophrenia",),
    "gastroenteritis": ("Gastroenteritis",),
}

LINEAR, TREES = "linear model of presence", "extra trees on presence"
FIELD_DEFAULT = "random forest on counts, as q2-sample-classifier"
GUESSES = ("the training median", "the majority class")
DEPTH_AND_RICHNESS = "depth and richness alone"
TRIVIAL = (
    *GUESSES,
    DEPTH_AND_RICHNESS,
    "depth alone",
    "richness alone",
    "covariates alone",
    "the study's median",
)


def train(options: str, output: Path) -> Mapping[str, Any]:
    """The only target in metrics.json of a run; `output` is trained if it has none."""
    result = output / "metrics.json"
    if not result.is_file():
        words = ["-m", "aam", "train", *shlex.split(options), "--output-dir", str(output)]
        print(shlex.join(words), file=sys.stderr, flush=True)
        subprocess.run([sys.executable, *words], check=True)
    (target,) = json.loads(result.read_text())["targets"].values()
    return dict(target)


def text(value: float | None) -> str:
    """A metric with three digits below 1 and two from 1 on."""
    if value is None:
        return "-"
    return "<0.001" if value < 0.0005 else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def with_p(value: float | None, test: Mapping[str, Any] | None) -> str:
    """A metric with the corrected p-value of the model's difference from it."""
    return "-" if value is None or test is None else f"{text(value)} ({text(test['corrected_p'])})"


def task_row(name: str, folder: Path) -> str:
    """The row of a task: the model, its members, the best strong baseline and trivial ones."""
    metric, study, options = TASKS[name]
    words = f"{options.format(DATA / study)} {DEPTH} --cv fold"
    target = train(words, folder / name.split(" (")[0].replace(" ", "-").replace(",", ""))
    model = target["metrics"][metric]
    values = {name: baseline[metric] for name, baseline in target["baselines"].items()}
    strong = {name: value for name, value in values.items() if name not in TRIVIAL}
    best = (min if metric == "mae" else max)(strong, key=strong.__getitem__, default="")
    guessing = next(name for name in values if name in GUESSES)
    cells = [
        f"{name}, {metric.upper() if metric != 'accuracy' else metric}",
        f"{text(model['value'])} ({text(model['low'])} to {text(model['high'])})",
        with_p(values.get(FIELD_DEFAULT), target["tests"].get(FIELD_DEFAULT)),
        text(values.get(LINEAR)),
        text(values.get(TREES)),
        f"{text(values[best])} ({'q2' if best == FIELD_DEFAULT else best})" if best else "-",
        text(values.get(DEPTH_AND_RICHNESS)),
        text(values[guessing]),
    ]
    return f"| {' | '.join(cells)} |"


def disease_row(name: str, folder: Path) -> str:
    """The row of a disease: AUROC in studies that were held out whole, and its mean."""
    study = DATA / "cohorts"
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str)
    path = folder / f"{DISEASES[name][-1]}.tsv"
    metadata[metadata["disease"].isin(DISEASES[name])].to_csv(path, sep="\t", index=False)
    options = f"--table {study}/table.biom --metadata {path} --metadata-column status"
    target = train(f"{options} --study-column study {DEPTH}", path.with_suffix(""))
    values = pd.Series(
        {study: part["auroc"] for study, part in target["parts"]["study"].items()}
    ).dropna()
    studies = ", ".join(f"{study} {text(value)}" for study, value in values.items())
    return f"| {name} | {len(values)} | {text(values.mean())} | {studies} |"


def main() -> None:
    """Train the runs that are missing and print the tables."""
    parser = argparse.ArgumentParser(description="Train the runs of docs/results.md.")
    parser.add_argument("folder", type=Path, help="Folder of the runs.")
    folder = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print(
        "| task, metric | aam | q2 (p) | linear model | trees | best strong baseline "
        "| depth and richness | guessing |\n" + "|---" * 8 + "|"
    )
    for name in TASKS:
        print(task_row(name, folder), flush=True)
    print("\n| disease | studies | mean AUROC | AUROC of each study |\n|---|---|---|---|")
    for name in DISEASES:
        print(disease_row(name, folder), flush=True)


if __name__ == "__main__":
    main()
