"""Metadata files as people export them: a held-out verdict, or one message with cell and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from aam.cli import main
from aam.data.table import make_table, write_biom

SAMPLES, HOSTS, FEATURES = 40, 20, 16
IDS = [f"11.S{row:02d}" for row in range(SAMPLES)]
# The row of the cell that differs from all others of its column.
ODD = 13


@pytest.fixture(autouse=True)
def _quick(quick_baselines: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """These reports are not about baselines and have no figures."""
    monkeypatch.setattr("aam.report.page.target_figures", lambda *_: [])


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """Reads of 40 samples."""
    rng, path = np.random.default_rng(8), tmp_path_factory.mktemp("messy") / "table.biom"
    counts = rng.poisson(60, (SAMPLES, FEATURES)) * (rng.random((SAMPLES, FEATURES)) < 0.7)
    counts[:, 0] += 400
    bases = np.array(list("ACGT"))[rng.integers(4, size=(FEATURES, 60))]
    sequences = ["".join(row) for row in bases]
    write_biom(make_table(csr_array(counts.astype(np.uint32)), IDS, sequences, sequences), path)
    return path


def study() -> pd.DataFrame:
    """Metadata of 20 hosts of two samples, as text."""
    rows, hosts = np.arange(SAMPLES), np.arange(SAMPLES) // 2
    frame = pd.DataFrame(index=pd.Index(IDS, name="sample-id"))
    frame["host"] = [f"P{host:02d}" for host in hosts]
    frame["age"] = [str(3 + row * 7 % 29) for row in rows]
    frame["birth"] = np.where(hosts % 2, "vaginal", "section")
    return frame


def odd(values: pd.Series | list[str], cell: str) -> list[str]:
    """The values of a column with one other cell."""
    values = [*values]
    values[ODD] = cell
    return values


class Export(NamedTuple):
    """A file, the column to predict, more options, and words of the message or of the log."""

    write: Callable[[pd.DataFrame], str]
    target: str = "birth"
    more: str = ""
    status: int = 0
    said: tuple[str, ...] = ()


def tabs(frame: pd.DataFrame) -> str:
    return frame.to_csv(sep="\t")


def spreadsheet(frame: pd.DataFrame) -> str:
    """A German spreadsheet: a byte-order mark, semicolons, decimal commas, empty columns."""
    frame["temp"] = [f"36,{row % 10}" for row in range(SAMPLES)]
    frame["formula"] = odd(["#DIV/0!"] * SAMPLES, "1.204,5")
    text = frame.to_csv(sep=";", lineterminator="\r\n")
    return "\ufeff" + text.replace("\r\n", ";;\r\n")


def spreadsheet_target(frame: pd.DataFrame) -> str:
    frame["age"] = [f"{value},5" for value in frame["age"]]
    return frame.to_csv(sep=";")


def clinical(frame: pd.DataFrame) -> str:
    frame["crp"] = odd([f"{row / 4}" for row in range(SAMPLES)], "<0.5")
    frame["visit"] = [f"V{row % 2 + 1} (baseline)" for row in range(SAMPLES)]
    frame["ward"] = "Not applicable"
    return tabs(frame)


def german(frame: pd.DataFrame) -> str:
    frame["birth"] = odd(
        frame["birth"].map({"vaginal": "spontan", "section": "Kaiserschnitt"}), "k. A."
    )
    frame["Größe"] = [f"1,{50 + row}" for row in range(SAMPLES)]
    return tabs(frame)


def qiita(frame: pd.DataFrame) -> str:
    frame["host"] = frame["host"].replace("P03", "not provided")
    for name in ("collection_timestamp", "latitude", "host_weight", "physical_specimen_location"):
        frame[name] = "not collected"
    frame["collection_timestamp"] = odd(["not provided"] * SAMPLES, "2016-03-01 10:20")
    frame["qiita_study_id"], frame["title"] = "10317", 'A "study" of births'
    return tabs(frame).replace("sample-id", "sample_name", 1)


def written_by_r(frame: pd.DataFrame) -> str:
    frame["weight"] = odd([f"{2 + row / 20}" for row in range(SAMPLES)], "NA")
    return frame.to_csv(quoting=2, index_label="")


def gaps_of_r(frame: pd.DataFrame) -> str:
    frame["birth"] = odd(frame["birth"], "NA")
    return frame.to_csv(quoting=2, index_label="")


def redcap(frame: pd.DataFrame) -> str:
    frame["birth"] = odd(frame["birth"].map({"vaginal": "1", "section": "2"}), "99")
    for code in range(3):
        frame[f"race___{code}"] = [str(int(row % 3 == code)) for row in range(SAMPLES)]
    frame["demographics_complete"] = "2"
    return frame.to_csv()


def redcap_numbers(frame: pd.DataFrame) -> str:
    frame["age"] = odd(frame["age"], "-999")
    return frame.to_csv()


def cohorts(frame: pd.DataFrame) -> str:
    """Two tables merged by hand: names that repeat, a column without a name, odd directives."""
    frame.columns = ["host", "age", "birth"]
    frame = frame.assign(x="1", y="2", z="3", cohort=["A", "B"] * (SAMPLES // 2))
    return tabs(frame).replace("\tx\ty\tz\t", "\tsex\tsex\t\t", 1)


def classes_of_one_cohort(frame: pd.DataFrame) -> str:
    frame["cohort"] = [f"C{row // 10}" for row in range(SAMPLES)]
    frame.loc[frame.index[:8:2], "birth"] = "assisted"
    return tabs(frame)


def typed(frame: pd.DataFrame) -> str:
    frame["dose"] = odd(["5"] * SAMPLES, "five")
    header, rest = tabs(frame).split("\n", 1)
    return f"{header}\n#q2:types\t\t\tcategorical\tnumeric\n{rest}"


def one_cell(cell: str, name: str = "birth") -> Callable[[pd.DataFrame], str]:
    return lambda frame: tabs(frame.assign(**{name: odd(frame[name], cell)}))


def dates(frame: pd.DataFrame) -> str:
    days = pd.Series(pd.date_range("2020-01-29", periods=SAMPLES, freq="17D"), frame.index)
    for name, form in {"iso": "%Y-%m-%d", "day": "%d.%m.%Y", "month": "%m/%d/%Y"}.items():
        frame[name] = days.dt.strftime(form)
    frame["none"] = odd(frame["day"], "31.02.2020")
    frame["sampled"] = odd(frame["iso"], "9999-99-99")
    return tabs(frame)


def shared_hosts(frame: pd.DataFrame) -> str:
    frame["host"] = [f"{row // 4},{row % 2}" for row in range(SAMPLES)]
    return tabs(frame)


LEFT_OUT = "has 1 of the 3 groups that learning needs ('11.S13')"
EXPORTS = {
    "spreadsheet": Export(spreadsheet),
    "spreadsheet, decimal commas in the target": Export(
        spreadsheet_target, "age", status=2, said=("'age'", "'10,5'", "--decimal ,")
    ),
    "spreadsheet, --decimal": Export(spreadsheet_target, "age", "--decimal ,"),
    "clinical export": Export(clinical, "age"),
    "clinical export, a limit in the target": Export(
        clinical, "crp", status=2, said=("'<0.5' (sample '11.S13')", "--missing-values")
    ),
    "German": Export(german, said=(f"class 'k. A.' {LEFT_OUT}", "--missing-values 'k. A.' --")),
    "Qiita": Export(qiita),
    "write.csv of R": Export(written_by_r, "age"),
    "write.csv of R, NA in the target": Export(
        gaps_of_r, status=2, said=("'11.S13'", "read as missing: 'NA'", "--missing drop")
    ),
    "REDCap codes": Export(redcap, more="--classifier", said=(f"class '99' {LEFT_OUT}",)),
    "REDCap, a code among numbers": Export(
        redcap_numbers, "age", said=("'age': 40 numbers from -999 to 31, median",)
    ),
    "merged cohorts": Export(cohorts, said=("2 columns are called 'sex'",)),
    "merged cohorts, the column twice": Export(
        cohorts, "sex", status=2, said=("2 columns are called 'sex'", "name each once")
    ),
    "a class of one cohort": Export(
        classes_of_one_cohort, more="--study-column cohort", said=("class 'assisted'", "held out")
    ),
    "a wrong directive": Export(typed),
    "one cell: upper case": Export(one_cell("Section"), said=("'Section' 1 of 1", LEFT_OUT)),
    "one cell: a unit among numbers": Export(
        one_cell("12 months", "age"), "age", status=2, said=("'12 months' (sample '11.S13')",)
    ),
    "dates in three orders": Export(dates, "age"),
    "dates as the target": Export(
        dates, "day", status=2, said=("fewer than two classes of 3 groups are left",)
    ),
    "one cell: a dash": Export(
        one_cell("-"), status=2, said=("'birth' are '-' (samples '11.S13')", "--missing-values")
    ),
    "one cell: a dash, named": Export(one_cell("-"), more="--missing drop --missing-values -"),
    "one cell: an error of a spreadsheet": Export(
        one_cell("#REF!"), status=2, said=("'birth' are '#REF!'", "--missing-values")
    ),
    "one cell: a question mark in another column": Export(one_cell("?", "age")),
    "decimal commas in the groups": Export(shared_hosts, status=2, said=("'host'", "--decimal ,")),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_ends_with_a_verdict_or_one_message(table, tmp_path, capfd, name):
    export, metadata, run = EXPORTS[name], tmp_path / "metadata.txt", tmp_path / "run"
    metadata.write_text(export.write(study()), encoding="utf-8")
    words = f"train --table {table} --metadata {metadata} --metadata-column {export.target} "
    words += f"--group-column host --rarefy-depth 300 --members presence --threads 1 {export.more}"
    extra = ["--decimal", ","] if "," in export.more else []
    words = words.replace("--decimal ,", "")
    assert main([*words.split(), *extra, "--output-dir", str(run)]) == export.status
    text = capfd.readouterr().err
    assert "Traceback" not in text
    for said in export.said:
        assert said in text
    if export.status:
        assert text.count("\n  - ") <= 2, text
        assert not run.exists()
        return
    warnings = text.rpartition("\naam train\n")[2].split("\n  warning: ")[1:]
    assert len(warnings) == len({*warnings})
    (result,) = json.loads((run / "metrics.json").read_text())["targets"].values()
    assert result["subset"] == "held-out"
    assert any(metric["value"] is not None for metric in result["metrics"].values())
    assert "Nothing to judge" not in result["verdict"][0]
    assert result["audit"]
