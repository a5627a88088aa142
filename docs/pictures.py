"""Takes the pictures of the docs anew: ``make pictures`` trains what they show, and a browser opens
the reports.

A run whose report is in the folder already is not made again. Needs Chromium; without
`AAM_BENCH_DATA` the picture of a new study stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[1]
INFANTS, ADULTS = ROOT / "examples" / "infant-age", ROOT / "docs" / "tutorial" / "qiime2-crc"
# Chromium's `--blink-settings=preferredColorScheme`.
DARK, LIGHT = 0, 1


def runs(folder: Path) -> dict[str, list[str]]:
    """Return the commands that make each run below `folder`: those of the demo, tutorials and
    guides.
    """
    infants = f"--table {INFANTS}/table.biom --metadata {INFANTS}/metadata.tsv"
    age = (
        f"{infants} --tree {INFANTS}/tree.nwk --metadata-column month --group-column "
        "host_subject_id"
    )
    adults = (
        f"--table {ADULTS}/table.qza --sequences {ADULTS}/rep-seqs.qza --tree "
        f"{ADULTS}/rooted-tree.qza"
    )
    adults += f" --metadata {ADULTS}/metadata.tsv --group-column subject --rarefy-depth 1000"
    cases = (
        f"{os.environ.get('AAM_BENCH_DATA')}/cohorts/table.biom --metadata "
        f"{folder}/cases.tsv --missing drop"
    )
    return {
        "age": [
            f"train {age} --rarefy-depth 1000",
            f"explain --model {folder}/age {infants} --taxonomy {INFANTS}/taxonomy.tsv",
        ],
        "delivery": [
            f"train {infants} --metadata-column delivery --categorical-columns diet"
            " --group-column host_subject_id --rarefy-depth 1000"
        ],
        "pretraining": [f"pretrain {adults} --test-size 0.2 --epochs 4"],
        "null": [
            f"train {adults} --metadata-column sex --split {folder}/pretraining/split.tsv "
            "--epochs 3"
            f" --pretrained-encoder {folder}/pretraining/model"
        ],
        "new-study": [
            (
                f"train --table {cases} --metadata-column status --study-column study "
                "--rarefy-depth "
                "1000"
            )
        ],
    }


@dataclass(frozen=True)
class Picture:
    """A part of a report: from the heading `anchor` on, `width` x `height` CSS pixels."""

    run: str
    width: int = 1280
    height: int = 900
    scheme: int = LIGHT
    anchor: str = ""


PICTURES = {
    "report-regression": Picture("age"),
    "report-phone": Picture("age", width=390),
    "report-dark": Picture("age", scheme=DARK),
    "report-importances": Picture("age", anchor="importances"),
    "report-classes": Picture("delivery"),
    "report-null": Picture("null"),
    "report-new-study": Picture("new-study"),
    "report-pretraining": Picture("pretraining", scheme=DARK),
}


def write_cases(path: Path) -> None:
    """Write the metadata of three studies of Parkinson's disease."""
    cohorts = pd.read_csv(
        Path(os.environ["AAM_BENCH_DATA"]) / "cohorts" / "metadata.tsv", sep="\t", dtype=str
    )
    cohorts[cohorts["disease"] == "Parkinson"].to_csv(path, sep="\t", index=False)


def make_runs(folder: Path) -> None:
    """Make the runs whose report is not there yet; raise `CalledProcessError` where a command
    fails.
    """
    for name, commands in runs(folder).items():
        if (folder / name / "report.html").exists() or (
            name == "new-study" and "AAM_BENCH_DATA" not in os.environ
        ):
            continue
        if name == "new-study":
            write_cases(folder / "cases.tsv")
        for number, words in enumerate(commands):
            output = f" --output-dir {folder / name} --overwrite" if number == 0 else ""
            print(f"aam {words}{output}", flush=True)
            subprocess.run([sys.executable, "-m", "aam", *shlex.split(words + output)], check=True)


def take(browser: str, picture: Picture, report: Path, path: Path) -> None:
    """Write a picture of a report as PNG; raise `CalledProcessError` where the browser fails."""
    # A window is no narrower than 500 pixels, a frame is.
    frame = path.with_suffix(".html")
    frame.write_text(
        f'<body style="margin: 0"><iframe src="{report.as_uri()}#{picture.anchor}" '
        f'width="{picture.width}"'
        f' height="{picture.height}" style="border: 0"></iframe></body>'
    )
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--screenshot={path}",
    ]
    command += [f"--window-size={picture.width},{picture.height}", "--virtual-time-budget=5000"]
    command += [
        f"--blink-settings=preferredColorScheme={picture.scheme}",
        "--allow-file-access-from-files",
    ]
    try:
        subprocess.run([*command, frame.as_uri()], check=True, capture_output=True)
    finally:
        frame.unlink()


def main() -> None:
    """Make the runs, and take all pictures of which there is a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="of the runs: some 20 minutes on two cores where it is empty"
    )
    folder = parser.parse_args().folder.absolute()
    browser = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if browser is None:
        sys.exit("no Chromium on PATH: install chromium or google-chrome")
    folder.mkdir(parents=True, exist_ok=True)
    make_runs(folder)
    for name, picture in PICTURES.items():
        report = folder / picture.run / "report.html"
        if report.exists():
            take(browser, picture, report, ROOT / "docs" / "pictures" / f"{name}.png")
            print(f"docs/pictures/{name}.png")


if __name__ == "__main__":
    main()
