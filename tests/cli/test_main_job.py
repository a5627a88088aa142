"""The main job from files to predictions, through the command line."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.sparse import csr_array

from aam.cli import main
from aam.data.table import make_table, read_table, write_biom
from aam.evaluate.predictions import read_predictions
from aam.predict.saved_model import load_model
from tests.programs import absent

SMALL = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --batch-size 16"


def aam(words: str) -> int:
    return main([*words.split(), "--threads", "1"])


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    return simulate_study(asvs=120, length=60, depth=2000)


def inputs(study: Path) -> str:
    return f"--table {study}/table.biom --rarefy-depth 300"


def labelled(study: Path) -> str:
    return f"{inputs(study)} --metadata {study}/metadata.tsv --metadata-column ph"


@pytest.fixture(scope="module")
def encoder(study: Path) -> Path:
    folder = study.parent / "pre"
    words = f"pretrain {inputs(study)} --tree {study}/tree.nwk --epochs 2 {SMALL}"
    assert aam(f"{words} --output-dir {folder}") == 0
    return folder


@pytest.fixture(scope="module")
def tuned(study: Path, encoder: Path) -> Path:
    folder = study.parent / "tune"
    words = f"train {labelled(study)} biome --group-column subject --test-size 0.2 --epochs 2"
    words += f" --pretrained-encoder {encoder}/model --members deep presence"
    assert aam(f"{words} --output-dir {folder}") == 0
    return folder


def other_table(study: Path, path: Path) -> Path:
    """The study's table with every fifth ASV replaced by a new sequence, and one sample too
    shallow.
    """
    table = read_table(study / "table.biom")
    sequences = [s if i % 5 else s[:-6] + "ACGTAC" for i, s in enumerate(table.sequences)]
    counts = table.counts.toarray().astype(np.int64)
    counts[3] = 0
    counts[3, 0] = 7
    names = [f"f{i}" for i in range(len(sequences))]
    write_biom(make_table(csr_array(counts), table.sample_ids, names, sequences), path)
    return path


def test_run_directory_holds_what_was_promised(encoder: Path, tuned: Path) -> None:
    names = "run.json split.tsv metrics.jsonl metrics.json report.html model/manifest.json"
    for folder in (encoder, tuned):
        assert [name for name in names.split() if not (folder / name).is_file()] == []
        assert load_model(folder / "last", torch.device("cpu")).notes.best_epoch <= 2
    run = json.loads((tuned / "run.json").read_text())
    assert run["config"]["targets"]["metadata_column"] == ["ph", "biome"]
    model = run["config"]["model"]
    sizes = (model["embedding_dim"], model["attention_layers"], model["attention_heads"])
    assert sizes == (16, 1, 2), "they come from the encoder"
    assert all(len(entry["sha256"]) == 64 for entry in run["inputs"].values())
    epochs = [json.loads(line) for line in (tuned / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in epochs] == [0, 1, 2]
    assert "Pretraining saw the held-out samples" in (tuned / "report.html").read_text()


@pytest.mark.slow
def test_a_cross_validation_says_how_far_it_is(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], strong_baselines: None
) -> None:
    words = f"train {labelled(study)} --group-column subject --cv 2 --members presence"
    words += f" --tree {study}/tree.nwk"
    assert aam(f"{words} --output-dir {tmp_path}/cv") == 0
    printed = " ".join(capfd.readouterr().err.split())
    for fold in (0, 1):
        learns = r"learns from \d+ samples \(\d+ subject\), predicts"
        assert re.search(rf"fold {fold} \({fold + 1} of 2\): {learns}", printed)
    assert "members: presence (linear model of presence)" in printed
    page = (tmp_path / "cv" / "report.html").read_text()
    assert "fold 1 (2 of 2)" in page
    assert '<span class="option">--cv</span> 2' in page
    # A small study has strong baselines whoever chose the folds.
    baselines = json.loads((tmp_path / "cv" / "metrics.json").read_text())["targets"]["ph"][
        "baselines"
    ]
    forest = "random forest on counts, as q2-sample-classifier"
    names = {forest, "extra trees on presence", "gradient boosting"}
    assert {*names, "nearest neighbours on UniFrac"} < set(baselines)
    assert forest in page


def test_predict_another_table_in_original_units(study: Path, tuned: Path, tmp_path: Path) -> None:
    table, output = other_table(study, tmp_path / "new.biom"), tmp_path / "p.tsv"
    assert aam(f"predict --model {tuned}/model --table {table} --output {output}") == 0
    rows = list(csv.reader(output.read_text().splitlines(), dialect="excel-tab"))
    header = "sample-id ph ph.rarefaction-sd biome biome=gill biome=gut biome=mouth biome=skin "
    assert rows[0] == f"{header}fold subset note".split()
    assert len(rows) == 61, "one row per input sample"
    predicted = read_predictions(output)
    shallow = 3
    assert np.isnan(predicted.predicted("ph")[shallow])
    assert "7 reads" in predicted.texts("note")[shallow]
    ph = np.delete(predicted.predicted("ph"), shallow)
    assert np.isfinite(ph).all()
    assert 3 < ph.mean() < 10, "pH, not a z-score"
    probabilities = np.delete(predicted.predicted("biome"), shallow, axis=0)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)


def test_held_out_predictions_are_repeated_by_predict(
    study: Path, tuned: Path, tmp_path: Path, predict_study
) -> None:
    held_out = read_predictions(tuned / "predictions.tsv")
    again = predict_study(study, tmp_path / "p.tsv", tuned / "model")
    rows = [again.sample_ids.index(name) for name in held_out.sample_ids]
    for name in ("ph", "biome"):
        found, expected = again.predicted(name)[rows], held_out.predicted(name)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_frozen_base_moves_heads_only(study: Path, encoder: Path, tmp_path: Path) -> None:
    words = f"train {labelled(study)} --freeze-base --epochs 2 --test-size 0 --members deep"
    assert aam(f"{words} --pretrained-encoder {encoder} --output-dir {tmp_path}/frozen") == 0
    before = load_file(encoder / "model" / "weights.safetensors")
    after = load_file(tmp_path / "frozen" / "model" / "weights.safetensors")
    shared = before.keys() & after.keys()
    assert any(name.startswith("asv.") for name in shared)
    assert all(np.array_equal(before[name], after[name]) for name in shared)


def test_pretraining_from_an_encoder_ends_no_worse_than_it(
    study: Path, encoder: Path, tmp_path: Path
) -> None:
    words = f"pretrain {inputs(study)} --tree {study}/tree.nwk --epochs 1 --lr 3"
    assert aam(f"{words} --pretrained-encoder {encoder} --output-dir {tmp_path}/again") == 0
    lines = (tmp_path / "again" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if '"epoch"' in line and "val_loss" in line]
    assert [record["epoch"] for record in records] == [0, 1]
    assert records[0]["val_loss"] < records[1]["val_loss"], "so large a rate makes it worse"
    assert [record["best"] for record in records] == [1, 0]
    before, after = (
        load_file(folder / "model" / "weights.safetensors")
        for folder in (encoder, tmp_path / "again")
    )
    assert all(np.array_equal(after[name], value) for name, value in before.items())


@pytest.mark.slow
def test_cross_validation_pools_every_sample_once(study: Path, tmp_path: Path) -> None:
    pre, tune = tmp_path / "pre", tmp_path / "tune"
    shared = f"{inputs(study)} --tree {study}/tree.nwk --metadata {study}/metadata.tsv --epochs 1"
    shared += " --cv depth_confounded"
    assert aam(f"pretrain {shared} {SMALL} --output-dir {pre}") == 0
    words = f"train {shared} --metadata-column ph --pretrained-encoder {pre} --members deep"
    assert aam(f"{words} --output-dir {tune}") == 0
    folds = sorted(path.name for path in tune.glob("fold-*"))
    assert folds == ["fold-case", "fold-control"]
    assert all((tune / fold / "model" / "manifest.json").is_file() for fold in folds)
    pooled = read_predictions(tune / "predictions.tsv")
    assert sorted(pooled.sample_ids) == sorted(read_table(study / "table.biom").sample_ids)
    assert set(pooled.texts("fold")) == {"case", "control"}
    page = (tune / "report.html").read_text()
    assert "Pretraining saw the held-out samples" not in page
    assert "Each of 2 values of depth_confounded was held out whole: " in page


def test_samples_without_metadata_are_named_in_the_report_with_the_class_that_they_take_along(
    study, tmp_path
) -> None:
    lines = [line.split("\t") for line in (study / "metadata.tsv").read_text().splitlines()]
    biome, season = (lines[0].index(name) for name in ("biome", "season"))
    gone = {
        row[biome]: row.__setitem__(season, "") for row in lines if row[biome] == lines[1][biome]
    }
    (tmp_path / "gaps.tsv").write_text("\n".join("\t".join(row) for row in lines) + "\n")
    words = f"train {inputs(study)} --metadata {tmp_path}/gaps.tsv --metadata-column biome"
    words += f" --cv season --missing drop --members presence --output-dir {tmp_path}/run"
    assert aam(words) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    number = sum(row[biome] in gone for row in lines)
    assert f"{number} of 60 samples of the table lack needed metadata and are left out." in page
    cells = "".join(f"<td>{count}</td>" for count in (number, 0, number))
    assert f'<tr><th scope="row">{"".join(gone)}</th>{cells}</tr>' in page


def test_embed_writes_vectors_with_ids(study: Path, tuned: Path, tmp_path: Path) -> None:
    words = f"embed --model {tuned}/last --table {study}/table.biom --output-dir {tmp_path}"
    assert aam(f"{words}/tsv") == 0
    assert aam(f"{words}/npy --format npy") == 0
    table = read_table(study / "table.biom")
    rows = (tmp_path / "tsv" / "asvs.tsv").read_text().splitlines()
    assert [row.split("\t")[0] for row in rows[1:]] == list(table.sequences)
    vectors = np.load(tmp_path / "npy" / "samples.npy", allow_pickle=False)
    assert vectors.shape == (60, 16)
    assert (tmp_path / "npy" / "samples.ids.txt").read_text().split() == list(table.sample_ids)


def test_evaluate_model_and_predictions_agree(study: Path, tuned: Path, tmp_path: Path) -> None:
    truth = f"evaluate --metadata {study}/metadata.tsv --group-column subject"
    model = f"--model {tuned}/model --table {study}/table.biom --split {tuned}/split.tsv"
    assert aam(f"{truth} {model} --output-dir {tmp_path}/a") == 0
    assert aam(f"{truth} --predictions {tuned}/predictions.tsv --output-dir {tmp_path}/b") == 0
    first, second, run = (
        json.loads((folder / "metrics.json").read_text())["targets"]["ph"]["metrics"]["mae"][
            "value"
        ]
        for folder in (tmp_path / "a", tmp_path / "b", tuned)
    )
    assert first == pytest.approx(second, rel=1e-5)
    assert first == pytest.approx(run, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("predict --model {study} {table} --output p.tsv", "manifest.json|retrain"),
        ("pretrain {table} --output-dir {study} --overwrite", "left untouched"),
        ("pretrain {table} --output-dir o --max-bp 50", "--trim"),
        ("pretrain {table} --output-dir o --rarefy-depth 10000000", "--rarefy-depth"),
        ("pretrain {table} --output-dir o --device gpu", "--device"),
        ("unifrac {table} --tree {study}/metadata.tsv --output d.h5", "metadata.tsv"),
        (
            "train {table} --metadata {study}/metadata.tsv --metadata-column pH --output-dir o",
            "'ph'",
        ),
    ],
)
def test_bad_input_is_one_message_and_status_2(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused, words: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(main, words.format(study=study, table=f"--table {study}/table.biom").split())
    assert "Traceback" not in error
    assert absent(error, *named.split("|")) == []
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_matrix_is_replaced_on_request_only(study: Path, tmp_path: Path) -> None:
    words = f"unifrac --table {study}/table.biom --tree {study}/tree.nwk --output {tmp_path}/d.h5"
    assert aam(words) == 0
    assert aam(words) == 2
    assert aam(f"{words} --overwrite") == 0
