"""Train the runs whose figures the pages show, and record them in docs/results.json.

``AAM_BENCH_DATA=DATA python docs/results.py FOLDER``. Runs in FOLDER are not trained again. Records
that no run of this file makes (other machines, earlier versions) stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
from pages import RECORDS, ROOT, read_records, write_pages

DATA = Path(os.environ.get("AAM_BENCH_DATA", "DATA"))

STUDY = "--table {data}/STUDY/table.biom --metadata {data}/STUDY/metadata.tsv"
CHILDREN = (
    STUDY.replace("STUDY", "infant-age")
    + " --tree {data}/infant-age/tree.nwk --group-column host_subject_id"
)
STUDENTS = STUDY.replace("STUDY", "braces")
ADULTS = "--table {tutorial}/table.qza --sequences {tutorial}/rep-seqs.qza"
PERSONS = f"{ADULTS} --metadata {{tutorial}}/metadata.tsv --group-column subject"
FIXED = "--missing drop --rarefy-depth 1000 --cv fold"
EXAMPLE = "--table {example}/table.biom --metadata {example}/metadata.tsv"


@dataclass(frozen=True)
class Run:
    """A command of aam without its output folder.

    `metric` is that of its only target; `shown` are patterns of what pages show of its output;
    `disease` are the values of a column of the study `cohorts` that it learns from.
    """

    words: str
    metric: str = ""
    shown: tuple[str, ...] = ()
    disease: tuple[str, ...] = ()


def _disease(*values: str) -> Run:
    words = "train --table {data}/cohorts/table.biom --metadata {runs}/DISEASE.tsv --missing drop "
    words += "--metadata-column status --study-column study --rarefy-depth 1000"
    return Run(words, "auroc", disease=values)


RESULT = r"(?ms)^(?:month|sex): .*?(?=\n  note|\nwarning|\nreport)"
TABLE = r"(?ms)^ +Mantel  share.*?richness .*?$"

# Runs by the name of their record.
RUNS = {
    "demo": Run(
        f"train {EXAMPLE} --tree {{example}}/tree.nwk --metadata-column month "
        "--group-column host_subject_id --rarefy-depth 1000",
        "mae",
        (RESULT,),
    ),
    "demo-folds": Run(
        f"train {EXAMPLE} --tree {{example}}/tree.nwk --metadata-column month "
        "--group-column host_subject_id --rarefy-depth 1000 --dry-run",
        shown=(r"(?m)^fold 0 .*",),
    ),
    "demo-explain": Run(
        f"explain --model {{runs}}/demo {EXAMPLE} --taxonomy {{example}}/taxonomy.tsv",
        shown=(
            r"month: \d+ of \d+ tested ASVs stand out in \d+ held-out samples",
            r"\d+ of \d+ tested taxa \(genus\), sums over ASVs, stand out(?:: [^;.]*;)?",
        ),
    ),
    "demo-audit": Run(
        "audit {example}/table.biom {example}/metadata.tsv --metadata-column month "
        "--group-column host_subject_id",
        shown=(r"(?ms)^column .*?^sex .*?$",),
    ),
    "adults-pretrain": Run(
        f"pretrain {PERSONS} --tree {{tutorial}}/rooted-tree.qza --test-size 0.2 "
        "--rarefy-depth 1000 --epochs 4",
        shown=(TABLE,),
    ),
    "adults": Run(
        f"train {PERSONS} --metadata-column sex --split {{runs}}/adults-pretrain/split.tsv "
        "--pretrained-encoder {runs}/adults-pretrain/model --rarefy-depth 1000 --epochs 3",
        "auroc",
        (RESULT,),
    ),
    "adults-cv": Run(f"train {PERSONS} --metadata-column sex --rarefy-depth 1000 --cv 5", "auroc"),
    "adults-explain": Run(
        f"explain --model {{runs}}/adults {ADULTS} --metadata {{tutorial}}/metadata.tsv "
        "--taxonomy {tutorial}/taxonomy.qza",
        shown=(
            r"sex: \d+ of \d+ tested ASVs stand out in \d+ held-out samples",
            r"\d+ of \d+ tested taxa \(genus\), sums over ASVs, stand out",
        ),
    ),
    "infants-age": Run(f"train {CHILDREN} --metadata-column month {FIXED}", "mae"),
    "infants-delivery": Run(
        f"train {CHILDREN} --metadata-column delivery --categorical-columns diet {FIXED}", "auroc"
    ),
    "infants-sex": Run(f"train {CHILDREN} --metadata-column sex {FIXED}", "auroc"),
    "mackerel": Run(
        f"train {STUDY.replace('STUDY', 'mackerel-type')} --group-column fish "
        f"--metadata-column sample_type {FIXED}",
        "accuracy",
    ),
    "students-braces": Run(f"train {STUDENTS} --metadata-column braces {FIXED}", "auroc"),
    "students-sex": Run(f"train {STUDENTS} --metadata-column sex {FIXED}", "auroc"),
    "adults-sex": Run(
        "train --table {data}/qiime2-crc/table.qza --sequences {data}/qiime2-crc/rep-seqs.qza "
        "--tree {data}/qiime2-crc/rooted-tree.qza --metadata {data}/qiime2-crc/metadata.tsv "
        f"--group-column subject --metadata-column sex {FIXED}",
        "auroc",
    ),
    "ibd": Run(
        f"train {STUDY.replace('STUDY', 'ibd')} --group-column host_subject_id "
        f"--metadata-column ibd {FIXED}",
        "auroc",
    ),
    "oral-age": Run(
        f"train {STUDY.replace('STUDY', 'oral-age')} --metadata-column age --batch-column study "
        f"{FIXED}",
        "mae",
    ),
    "new-ibd": _disease(
        "IBD_Crohn_disease", "IBD_Ulcerative_Colitis", "IBD_Inflammtory_bowel_disease"
    ),
    "new-parkinson": _disease("Parkinson"),
    "new-obesity": _disease("Obesity"),
    "new-ibs": _disease("Irritable_bowel_syndrom"),
    "new-autism": _disease("Autism"),
    "new-schizophrenia": _disease("Schizophrenia"),
    "new-gastroenteritis": _disease("Gastroenteritis"),
}


def commit() -> str:
    """The last commit that changed the package; with a plus where files differ from it."""

    def git(*words: str) -> str:
        command = ["git", *words, "--", "aam"]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("log", "-1", "--format=%h", "--abbrev=8").strip() + ("+" if changed else "")


def run(name: str, folder: Path) -> dict[str, Any]:
    """Run a command unless its output is there, and return what is kept of it.

    The time, the commit and the machine are written next to the run when it ends.
    """
    words, log, facts = RUNS[name].words, folder / f"{name}.log", folder / f"{name}.json"
    if not facts.is_file():
        places = {"data": DATA, "runs": folder}
        places |= {"example": ROOT / "examples/infant-age"}
        places |= {"tutorial": ROOT / "docs/tutorial/qiime2-crc"}
        quoted = {place: shlex.quote(str(path)) for place, path in places.items()}
        given = words.replace("DISEASE", name).format_map(quoted)
        output = [] if given.startswith("audit") else ["--output-dir", str(folder / name)]
        print(name, file=sys.stderr, flush=True)
        if RUNS[name].disease:
            write_disease(folder / f"{name}.tsv", RUNS[name].disease)
        with log.open("w") as printed:
            program = [sys.executable, "-m", "aam", *shlex.split(given), *output]
            subprocess.run(program, check=True, cwd=ROOT, stdout=printed, stderr=printed)
        facts.write_text(json.dumps({"commit": commit(), "date": today(), "machine": machine()}))
    public = {"data": "DATA", "runs": "RUNS", "example": "examples/infant-age"}
    public |= {"tutorial": "docs/tutorial/qiime2-crc"}
    command = f"aam {words.replace('DISEASE', name).format_map(public)}"
    values = values_of(folder / name, RUNS[name].metric) if RUNS[name].metric else {}
    if RUNS[name].shown:
        values["printed"] = excerpt(log.read_text(encoding="utf-8"), RUNS[name].shown)
    return {"command": command, **json.loads(facts.read_text()), "values": values}


def today() -> str:
    """The date."""
    return datetime.now(timezone.utc).date().isoformat()


def machine() -> str:
    """The processor and the number of threads."""
    import torch

    from aam.device.platform import device_name

    return str(device_name(torch.device("cpu")))


def write_disease(path: Path, values: tuple[str, ...]) -> None:
    """Write the metadata of the samples of one disease in the study `cohorts`."""
    metadata = pd.read_csv(DATA / "cohorts" / "metadata.tsv", sep="\t", dtype=str)
    metadata[metadata["disease"].isin(values)].to_csv(path, sep="\t", index=False)


def excerpt(printed: str, patterns: tuple[str, ...]) -> list[str]:
    """The lines of an output that pages show; "..." stands for what is left out between them."""
    found = [re.search(pattern, printed) for pattern in patterns]
    missing = [pattern for pattern, match in zip(patterns, found, strict=True) if match is None]
    if missing:
        sys.exit(f"not in the output: {missing}")
    return " ...\n".join(match[0] for match in found if match is not None).splitlines()


def values_of(folder: Path, metric: str) -> dict[str, Any]:
    """The figures of the only target of a run: metric, baselines, their p, parts, and audit."""
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    (target,) = metrics["targets"].values()

    def of_metric(parts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: part[metric] for name, part in parts.items() if part.get(metric) is not None}

    values = {"metric": metric, **target["metrics"][metric]}
    values["baselines"] = of_metric(target["baselines"])
    values["p"] = {name: test["corrected_p"] for name, test in target["tests"].items()}
    values["verdict"] = target["verdict"][0]
    for part in target["parts"].values():
        values["parts"] = of_metric(part)
    values["audit"] = {
        row["column"]: {"random": row["random"], "split": row["split"]}
        for row in target.get("audit", [])
        if row["remark"] == "donors" or row["column"] in ("sequencing depth", "richness")
    }
    return dict(rounded(values))


def rounded(value: Any) -> Any:
    """Nested numbers with six digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    """Train the runs that are missing, record all, and fill the pages."""
    parser = argparse.ArgumentParser(description="Train the runs of the pages and record them.")
    parser.add_argument("folder", type=Path, help="Folder of the runs.")
    parser.add_argument("--only", nargs="+", default=[*RUNS], metavar="NAME", help="Their names.")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        records = {**read_records(), name: run(name, folder)}
        text = json.dumps(dict(sorted(records.items())), indent=1, ensure_ascii=False)
        RECORDS.write_text(f"{text}\n", encoding="utf-8")
    write_pages()


if __name__ == "__main__":
    main()
