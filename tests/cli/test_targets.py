"""`aam pretrain --targets`: what is learned beside UniFrac, from options to the report."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from aam.cli.main import main
from aam.data.table import read_table
from aam.files.atomic import read_json
from tests.cli.test_resume import interrupted
from tests.runs import assert_same_run

SIZES = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --rarefy-depth 400"
SMALL = f"{SIZES} --batch-size 16 --device cpu --threads 1".split()
ALL = "bray-curtis jaccard faith-pd taxonomy"


@pytest.fixture(scope="module")
def second(simulate_study) -> Path:
    return simulate_study("second", samples=40, seed=3)


@pytest.fixture(scope="module")
def taxonomy(study, second) -> Path:
    """Taxa by the first bases of each ASV; of every fifth only the kingdom is known."""
    sequences = [
        s for folder in (study, second) for s in read_table(folder / "table.biom").sequences
    ]
    lines = [
        f"{s}\tk__B; p__{s[0]}; c__{s[:2] if at % 5 else ''}\n"
        for at, s in enumerate(dict.fromkeys(sequences))
    ]
    path = study.parent / "taxonomy.tsv"
    path.write_text("".join(["Feature ID\tTaxon\n", *lines]))
    return path


def words_of(output: Path, words: str) -> list[str]:
    return ["pretrain", *words.split(), *SMALL, "--output-dir", str(output)]


def pretrain(output: Path, words: str) -> int:
    return main(words_of(output, words))


def test_a_run_learns_all_reports_all_and_goes_on_bit_by_bit(
    study, taxonomy, tmp_path, monkeypatch, capsys
):
    words = (
        f"--table {study}/table.biom --tree {study}/tree.nwk --targets {ALL} --taxonomy "
        f"{taxonomy} --test-size 0.2"
    )
    words += " --epochs 2 --gradient-accumulation-steps 2"
    assert pretrain(tmp_path / "whole", words) == 0
    stderr = capsys.readouterr().err
    assert "losses: unifrac, bray-curtis, jaccard, faith-pd, taxonomy, masked" in stderr
    for title in ("unifrac", "bray-curtis", "jaccard", "Faith PD"):
        assert f"Agreement with {title} on " in stderr
    resumed = [*words_of(tmp_path / "run", words), "--resume-from", "auto"]
    interrupted(monkeypatch, resumed, after=1)
    assert main(resumed) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_studies_have_targets_without_trees_and_unseen_asvs_are_named(
    study, second, taxonomy, tmp_path, capsys
):
    tables = f"--table {study}/table.biom {second}/table.biom --hold-out-study second --epochs 1"
    words = f"{tables} --targets jaccard taxonomy --taxonomy {taxonomy} --count-penalty 0"
    assert pretrain(tmp_path / "run", words) == 0
    stderr = capsys.readouterr().err
    assert "the encoder learns from jaccard and taxonomy and masked nucleotides only" in stderr
    assert "second: Agreement with jaccard on 40 held-out samples" in stderr
    assert "Taxa of 80 ASVs absent from training" in stderr
    assert "phylum" in stderr
    heads = read_json(tmp_path / "run" / "model" / "model.json")["heads"]["further"]
    assert heads["ranks"] == ["phylum", "class"]
    assert heads["names"] == ["jaccard", "taxonomy"]

    embed = (
        f"embed --model {tmp_path}/run --table {second}/table.biom --output-dir {tmp_path}/vectors"
    )
    assert main([*embed.split(), *SMALL[-4:]]) == 0
    with (tmp_path / "vectors" / "taxa.tsv").open(encoding="utf-8") as file:
        named = list(csv.DictReader(file, dialect="excel-tab"))
    assert list(named[0]) == ["asv", "phylum", "phylum.probability", "class", "class.probability"]
    assert [row["asv"] for row in named] == list(read_table(second / "table.biom").sequences)
    assert {row["phylum"] for row in named} <= {f"k__B; p__{base}" for base in "ACGT"}
    assert all(0.25 <= float(row["phylum.probability"]) <= 1 for row in named)

    other = (
        f"--table {study}/table.biom --tree {study}/tree.nwk --epochs 1 --targets faith-pd jaccard"
    )
    assert pretrain(tmp_path / "other", f"{other} --pretrained-encoder {tmp_path}/run") == 0
    assert "further" in capsys.readouterr().err
    train = (
        f"train --table {study}/table.biom --metadata {study}/metadata.tsv --metadata-column "
        "ph --epochs 1"
    )
    train += (
        f" --test-size 0 --members deep --pretrained-encoder {tmp_path}/other --output-dir "
        f"{tmp_path}/tune"
    )
    assert main([*train.split(), *SMALL[-4:]]) == 0
    assert not read_json(tmp_path / "tune" / "model" / "model.json")["heads"]["further"]["names"]


def test_what_cannot_be_learned_is_refused_in_one_message(study, taxonomy, tmp_path, capsys):
    table, tree = f"--table {study}/table.biom", f"--tree {study}/tree.nwk"
    (tmp_path / "flat.tsv").write_text(
        "Feature ID\tTaxon\n"
        + "".join(f"{s}\tk__B\n" for s in read_table(study / "table.biom").sequences)
    )
    (tmp_path / "other.tsv").write_text("Feature ID\tTaxon\nACGT\tk__B\n")
    (tmp_path / "bad.tsv").write_text("id\tnothing\nACGT\tk__B\n")
    sequences = read_table(study / "table.biom").sequences
    rows = [f"{s}\t{50 * (at < 30)}\t50\n" for at, s in enumerate(sequences)]
    (tmp_path / "two.tsv").write_text("".join(["#OTU ID\ta\tb\n", *rows]))
    (tmp_path / "mono.tsv").write_text(f"#OTU ID\ta\tb\tc\n{sequences[0]}\t500\t600\t700\n")
    refused = {
        f"--table {tmp_path}/two.tsv --targets jaccard": (
            "1 of its samples to train on, expected 2 or more"
        ),
        f"--table {tmp_path}/mono.tsv --targets jaccard": (
            "1 of its ASVs to train on, expected 2 or more"
        ),
        f"{table} --targets taxonomy": "--targets taxonomy: --taxonomy is not given",
        f"{table} --taxonomy {taxonomy}": "nothing learns it; add taxonomy to --targets",
        f"{table} --targets faith-pd": (
            "--targets faith-pd: it is read off a tree; name one by --tree"
        ),
        f"{table} {tree} --unifrac-metric faith_pd --targets faith-pd": "both are Faith PD",
        f"{table} --targets jaccard jaccard": (
            "--targets names a target twice: 'jaccard', 'jaccard'"
        ),
        f"{table} --targets jaccard --targets-penalty 0": "--targets-penalty 0 gives it no weight",
        f"{table} --targets-penalty 2": "--targets-penalty is 2.0, and there are no --targets",
        f"{table} --targets taxonomy --taxonomy {tmp_path}/none.tsv": "no such file or folder",
        f"{table} --targets taxonomy --taxonomy {tmp_path}/flat.tsv": (
            "have fewer than two taxa at every rank"
        ),
        f"{table} --targets taxonomy --taxonomy {tmp_path}/other.tsv": "names none of the 80 ASVs",
        f"{table} --targets taxonomy --taxonomy {tmp_path}/bad.tsv": (
            "expected 'Feature ID' and 'Taxon'"
        ),
    }
    for words, message in refused.items():
        assert pretrain(tmp_path / "run", words) == 2, words
        stderr = capsys.readouterr().err
        assert message in stderr, (words, stderr)
        assert stderr.count("Traceback") == 0
        assert not (tmp_path / "run").exists(), words
    with pytest.raises(SystemExit) as caught:
        pretrain(tmp_path / "run", f"{table} --targets jacard")
    assert caught.value.code == 2
    assert "bray-curtis" in capsys.readouterr().err
