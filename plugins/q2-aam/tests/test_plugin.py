"""The plugin in the real framework: artifacts in, validated artifacts and a report out, provenance
intact.

Skips where qiime2 and q2-types are not installed; then nothing of q2_aam can be imported.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from aam.cli import main
from aam.data.simulate import simulate

qiime2 = pytest.importorskip(
    "qiime2", reason="qiime2 is not installed: it is no package of the Python index"
)
pytest.importorskip(
    "q2_types", reason="q2-types is not installed: it is no package of the Python index"
)

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    "sampling_depth": 300,
    "embedding_dim": 16,
    "attention_layers": 1,
    "attention_heads": 2,
    "epochs": 1,
    "n_jobs": 1,
    "device": "cpu",
}
WORDS = (
    "--rarefy-depth 300 --embedding-dim 16 --attention-layers 1 --attention-heads 2 --epochs "
    "1 --threads 1"
)


@pytest.fixture(scope="module")
def actions() -> Any:
    from q2_aam.plugin import plugin
    from qiime2.sdk import PluginManager

    manager = PluginManager()
    if "aam" not in manager.plugins:
        manager.add_plugin(plugin)
    return manager.plugins["aam"].actions


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "study"
    simulate(folder, samples=60, asvs=80, length=50, depth=1500)
    return folder


@pytest.fixture(scope="module")
def inputs(study: Path) -> dict[str, Any]:
    import biom
    import skbio

    table = qiime2.Artifact.import_data(
        "FeatureTable[Frequency]", biom.load_table(str(study / "table.biom"))
    )
    tree = qiime2.Artifact.import_data(
        "Phylogeny[Rooted]", skbio.TreeNode.read(str(study / "tree.nwk"))
    )
    metadata = qiime2.Metadata.load(str(study / "metadata.tsv"))
    return {"table": table, "phylogeny": tree, "metadata": metadata}


def parents(result: Any) -> set[str]:
    """UUIDs of all results that the provenance of an artifact holds."""
    return {str(node.name) for node in (result._archiver.provenance_dir / "artifacts").iterdir()}


def test_artifacts_to_models_predictions_and_a_report(actions, inputs, study, tmp_path):
    table, tree, metadata = inputs["table"], inputs["phylogeny"], inputs["metadata"]
    groups = metadata.get_column("subject")
    (encoder,) = actions["pretrain"](table=table, phylogeny=tree, **SMALL)
    (model,) = actions["fit_regressor"](
        table=table,
        metadata=metadata.get_column("ph"),
        groups=groups,
        encoder=encoder,
        test_size=0.0,
        **SMALL,
    )
    (predictions,) = actions["predict"](table=table, sample_estimator=model, n_jobs=1, device="cpu")
    (embedding,) = actions["embed"](table=table, encoder=encoder, n_jobs=1, device="cpu")
    for result in (encoder, model, predictions, embedding):
        path = result.save(str(tmp_path / str(result.uuid)))
        loaded = qiime2.Artifact.load(path)
        loaded.validate("max")
    assert {str(table.uuid), str(encoder.uuid), str(model.uuid)} <= parents(predictions)
    values = predictions.view(qiime2.Metadata).to_dataframe()
    assert embedding.view(qiime2.Metadata).to_dataframe().shape == (60, 16)
    # The same predictions as those of the commands.
    pre, run = tmp_path / "pre", tmp_path / "run"
    files = f"--table {study}/table.biom --tree {study}/tree.nwk {WORDS} --device cpu"
    assert main(f"pretrain {files} --output-dir {pre}".split()) == 0
    more = (
        f"--metadata {study}/metadata.tsv --metadata-column ph --group-column subject --test-size 0"
    )
    train = (
        f"train --table {study}/table.biom {WORDS} {more} --pretrained-encoder {pre}/model "
        "--device cpu"
    )
    assert main(f"{train} --output-dir {run}".split()) == 0
    words = (
        f"predict --table {study}/table.biom --model {run}/model --threads 1 --output "
        f"{tmp_path}/p.tsv"
    )
    assert main(words.split()) == 0
    theirs = pd.read_csv(tmp_path / "p.tsv", sep="\t", index_col=0)["ph"]
    np.testing.assert_allclose(values["ph"], theirs.loc[list(values.index)], rtol=1e-6)


def test_the_visualization_is_the_report(actions, inputs, tmp_path):
    metadata = inputs["metadata"]
    (report,) = actions["cross_validate"](
        table=inputs["table"],
        metadata=metadata.get_column("biome"),
        groups=metadata.get_column("subject"),
        cv="3",
        **SMALL,
    )
    path = report.save(str(tmp_path / "report.qzv"))
    names = {
        name.split("/data/")[1] for name in zipfile.ZipFile(path).namelist() if "/data/" in name
    }
    assert {"index.html", "predictions.tsv", "metrics.json", "run.json"} <= names
    assert str(inputs["table"].uuid) in parents(report)


def test_models_that_are_damaged_or_of_another_kind_do_not_validate(actions, inputs, tmp_path):
    from q2_aam.formats import EncoderFolderFormat, TargetsFolderFormat
    from qiime2.plugin import ValidationError

    (encoder,) = actions["pretrain"](table=inputs["table"], **SMALL)
    folder = encoder.view(EncoderFolderFormat)
    with pytest.raises(ValidationError, match="an encoder without targets"):
        TargetsFolderFormat(str(folder), mode="r").validate("max")
    encoder.export_data(str(tmp_path / "out"))
    weights = tmp_path / "out" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ValidationError, match="weights"):
        EncoderFolderFormat(str(tmp_path / "out"), mode="r").validate("min")


def test_distances_are_those_of_the_command(actions, inputs, study, tmp_path):
    import skbio

    (distances,) = actions["unifrac"](
        table=inputs["table"], phylogeny=inputs["phylogeny"], n_jobs=1, device="cpu"
    )
    distances.validate("max")
    words = f"unifrac --table {study}/table.biom --tree {study}/tree.nwk --output {tmp_path}/d.tsv"
    assert main(words.split()) == 0
    expected = skbio.DistanceMatrix.read(str(tmp_path / "d.tsv"))
    np.testing.assert_allclose(
        distances.view(skbio.DistanceMatrix).filter(expected.ids).data, expected.data, atol=1e-7
    )


def test_four_artifacts_of_a_study_become_a_report(actions, bench_data, tmp_path):
    folder = bench_data / "qiime2-crc"
    loaded = {
        name: qiime2.Artifact.load(str(folder / f"{name}.qza"))
        for name in ("table", "rep-seqs", "rooted-tree")
    }
    metadata = qiime2.Metadata.load(str(folder / "metadata.tsv"))
    column = "sex"
    (report,) = actions["cross_validate"](
        table=loaded["table"],
        sequences=loaded["rep-seqs"],
        phylogeny=loaded["rooted-tree"],
        metadata=metadata.get_column(column),
        cv="2",
        missing_samples="drop",
        missing_tips="drop",
        **SMALL,
    )
    path = report.save(str(tmp_path / "report.qzv"))
    qiime2.Visualization.load(path).validate("max")
    assert {str(one.uuid) for one in loaded.values()} <= parents(report)
