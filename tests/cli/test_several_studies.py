"""`aam pretrain` on several tables, and what is trained from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from aam.cli import main

CPU = torch.device("cpu")

SIZES = "--embedding-dim 16 --attention-layers 1 --attention-heads 2"
SMALL = f"{SIZES} --batch-size 16 --epochs 1 --device cpu --threads 1".split()


@pytest.fixture(scope="module")
def second(simulate_study) -> Path:
    return simulate_study("second", samples=40, seed=3)


def pretrain(output: Path, *words: object) -> int:
    more = f"--rarefy-depth 400 --output-dir {output}".split()
    return main(["pretrain", *map(str, words), *SMALL, *more])


def test_bases_first_then_distances(study, second, tmp_path, capsys):
    tables = ("--table", study / "table.biom", second / "table.biom")
    more = ["--penalty", "0", "--count-penalty", "0", "--max-bp", "60"]
    assert pretrain(tmp_path / "bases", *tables, *more) == 0
    assert "no UniFrac term is learned" in capsys.readouterr().err
    trees = ("--tree", study / "tree.nwk", second / "tree.nwk", "--test-size", 0.5)
    start = ("--pretrained-encoder", tmp_path / "bases", "--nuc-penalty", 0)
    assert pretrain(tmp_path / "distances", *tables, *trees, *start) == 0
    report = capsys.readouterr().err
    held_out = re.findall(r"(\w+): Agreement with unifrac on (\d+) held-out samples", report)
    assert [name for name, _ in held_out] == ["study", "second"]
    assert sum(int(count) for _, count in held_out) == 50
    assert "no UniFrac term" not in report
    words = f"train --table {study}/table.biom --metadata {study}/metadata.tsv --metadata-column "
    words += "ph --freeze-base"
    words += f" --test-size 0 --members deep --pretrained-encoder {tmp_path}/distances "
    words += f"--output-dir {tmp_path}/tune"
    assert main([*words.split(), *SMALL[-6:]]) == 0
    capsys.readouterr()
    samples = {}
    for run in ("distances", "tune"):
        embed = f"embed --model {tmp_path}/{run} --table {study}/table.biom --output-dir"
        assert main([*embed.split(), f"{tmp_path}/{run}-vectors", *SMALL[-4:]]) == 0
        samples[run] = (tmp_path / f"{run}-vectors" / "samples.tsv").read_text()
    # A frozen base reads the samples as its encoder does.
    assert samples["distances"] == samples["tune"]


def test_what_cannot_go_together_is_refused_at_once(study, second, tmp_path, capsys, refused):
    words = f"--table {study}/table.biom {second}/table.biom --tree {study}/tree.nwk --cv 3"
    stderr = refused(pretrain, tmp_path / "run", *words.split())
    assert "--tree: 1 for 2 tables; give one for each, or none in its place" in stderr
    assert "'--cv': for one table only" in stderr
    assert not (tmp_path / "run").exists()
