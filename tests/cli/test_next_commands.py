"""Commands that a user runs in a row: what one prints, the next takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import pytest

from aam.cli import main

pytestmark = pytest.mark.slow

# What the user has, and no command knows.
OWN = {"TABLE": "table.biom", "METADATA": "metadata.tsv", "COLUMN": "biome", "RUN": "run"}
SMALL = ["--embedding-dim", "16", "--attention-heads", "2", "--attention-layers", "1"]
SMALL += ["--epochs", "1", "--rarefy-depth", "300", "--device", "cpu", "--threads", "1"]


@pytest.fixture
def folder(simulate_study, tmp_path, monkeypatch) -> Path:
    """The working folder of a user, with the files of a small study."""
    study = simulate_study()
    for name in ("table.biom", "metadata.tsv", "tree.nwk"):
        (tmp_path / name).write_bytes((study / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def next_words(capfd, words: list[str]) -> list[str]:
    """The words of the last command that a command prints, with what the user has filled in."""
    capfd.readouterr()
    assert main(words) == 0, words
    printed = capfd.readouterr()
    command = [line for line in (printed.err + printed.out).splitlines() if "aam " in line][-1]
    program, *following = shlex.split(command[command.index("aam ") :])
    assert program == "aam"
    return [OWN.get(word, word) for word in following]


def test_from_an_audit_to_importances(folder, capfd):
    metadata = pd.read_csv(folder / "metadata.tsv", sep="\t", index_col=0)
    metadata.loc[metadata.index[:3], "biome"] = ""
    metadata.to_csv(folder / "metadata.tsv", sep="\t")
    files = ["--table", "table.biom", "--metadata", "metadata.tsv"]
    audit = next_words(capfd, ["audit", *files])
    assert audit[0] == "audit"
    train = next_words(capfd, [*audit, "--rarefy-depth", "300", "--exclude", str(excluded(folder))])
    assert train[:5] == ["train", *files]
    assert {"--missing", "--exclude", "--rarefy-depth"} <= {*train}
    predict = next_words(capfd, [*train, "--device", "cpu"])
    assert " ".join(predict) == "predict --model run --table table.biom --output predictions.tsv"
    evaluate = next_words(capfd, predict)
    assert evaluate[:3] == ["evaluate", "--predictions", "predictions.tsv"]
    assert main(evaluate) == 0
    page = (folder / "run/report.html").read_text(encoding="utf-8")
    explain = page.split("adds it here", 1)[1].split("<pre>", 1)[1].split("</pre>")[0]
    explain = explain.replace('<span class="option">', "").replace("</span>", "")
    assert main([*shlex.split(explain)[1:], "--prediction-passes", "1"]) == 0


def excluded(folder: Path) -> Path:
    """A list with one sample of the study."""
    path = folder / "excluded.txt"
    path.write_text((folder / "metadata.tsv").read_text().splitlines()[-1].split("\t")[0] + "\n")
    return path


def test_from_a_pretraining_to_vectors_and_an_export(folder, capfd):
    words = ["pretrain", "--table", "table.biom", "--tree", "tree.nwk", "--output-dir", "encoder"]
    train = next_words(capfd, [*words, *SMALL])
    assert train[:3] == ["train", "--pretrained-encoder", "encoder"]
    embed = ["embed", "--model", "encoder", "--table", "table.biom", "--output-dir", "vectors"]
    assert main(embed) == 0
    assert main(["export", "--model", "encoder", "--format", "torch", "--output", "program"]) == 0
    more = ["--epochs", "1", "--test-size", "0.3", "--rarefy-depth", "300", "--device", "cpu"]
    predict = next_words(capfd, [*train, *more])
    assert predict[:3] == ["predict", "--model", "run"]
    assert main(predict) == 0


def test_values_that_look_like_options_are_taken(folder, capfd):
    metadata = pd.read_csv(folder / "metadata.tsv", sep="\t", index_col=0)
    metadata = metadata.rename(columns={"biome": "-b, 'x' $HOME"})
    metadata.to_csv(folder / "metadata.tsv", sep="\t")
    target = "--metadata-column=-b, 'x' $HOME"
    train = next_words(capfd, ["audit", "table.biom", "metadata.tsv", target])
    assert target in train
    assert main([*train, "--dry-run"]) == 0
