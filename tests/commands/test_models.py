"""`aam models`, and the names of shipped encoders where a model folder is asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import aam
import aam.encoders as shipped
from aam.cli.main import main
from aam.config import DataConfig, FineTuneConfig, ModelConfig, TrainConfig
from aam.data.placement import ReferenceTree
from aam.data.region import RegionProfile
from aam.data.table import make_table, write_biom
from aam.data.targets import Targets
from aam.data.tokens import reverse_complement
from aam.engine.options import RunConfig
from aam.errors import InputError
from aam.files.atomic import MANIFEST
from aam.files.tensors import read_arrays
from aam.io.matrices import read_distances
from aam.io.taxonomy import read_taxonomy
from aam.model.heads import HeadConfig
from aam.predict.saved_model import SavedModel, load_model, load_models, save_model
from aam.training.inputs import load_inputs

CPU = torch.device("cpu")
SIZES = ModelConfig(embedding_dim=16, attention_heads=2, attention_layers=1, max_bp=60)


@pytest.fixture
def encoders(tmp_path, study_of, tiny, model_of, monkeypatch) -> Path:
    """A folder with one shipped encoder, called tiny."""
    study = study_of(**tiny())
    heads = HeadConfig("unifrac", counts=True)
    sizes = {field.name: getattr(SIZES, field.name) for field in dataclasses.fields(SIZES)}
    profile = RegionProfile.fit(study.table.sequences)
    notes = {"seen_samples": ["s1"], "labelled_samples": []}
    reference = ReferenceTree(
        np.array([2, 2, -1], np.int32),
        np.array([0.1, 0.2, 0], np.float32),
        study.tokens[:2, :12].numpy(),
    )
    network = model_of(heads, reference=reference, **sizes)
    saved = SavedModel(network, study.config, SIZES, heads, 500, 0, Targets(()), profile, notes)
    folder = tmp_path / "encoders"
    folder.mkdir()
    monkeypatch.setattr("aam.predict.saved_model.SHARD_LIMIT", 50_000)
    save_model(folder / "tiny", saved, card="# A tiny encoder\n\nLimits: all.\n")
    monkeypatch.setattr(shipped, "ENCODERS", folder)
    return folder


def test_half_precision_in_shards_is_read_as_single(encoders):
    saved = load_model(encoders / "tiny", CPU)
    assert {parameter.dtype for parameter in saved.network.parameters()} == {torch.float32}
    shards = sorted(encoders.glob("tiny/weights*"))
    number = len(shards)
    assert number > 1
    assert [path.name for path in shards] == [
        f"weights-{n:05d}-of-{number:05d}.safetensors" for n in range(1, number + 1)
    ]
    size = sum(path.stat().st_size for path in shards)
    assert size < 2.2 * sum(tensor.numel() for tensor in saved.network.state_dict().values())
    (named,) = load_models([Path("tiny")], CPU)
    assert torch.equal(named.network.branches.readout.weight, saved.network.branches.readout.weight)
    assert named.network.reference.tokens.shape == (2, 12)


def test_a_name_stands_for_its_folder(encoders, tmp_path, capsys):
    study = tmp_path / "study"
    assert (
        main(
            f"simulate --output-dir {study} --samples 40 --asvs 60 --length 50 --depth 4000".split()
        )
        == 0
    )
    table = ["--table", str(study / "table.biom"), "--device", "cpu", "--threads", "1"]
    assert (
        main(["embed", "--model", "tiny", *table, "--output-dir", str(tmp_path / "vectors")]) == 0
    )
    assert len((tmp_path / "vectors" / "samples.tsv").read_text().splitlines()) > 35
    words = [
        "--metadata",
        str(study / "metadata.tsv"),
        "--metadata-column",
        "ph",
        "--freeze-base",
        "--epochs",
        "1",
    ]
    encoder = [
        "--members",
        "deep",
        "--pretrained-encoder",
        "tiny",
        "--output-dir",
        str(tmp_path / "tune"),
    ]
    capsys.readouterr()
    assert main(["train", *table, *words, *encoder]) == 0
    assert "--pretrained-encoder: the ASVs have another length" in capsys.readouterr().err
    assert (
        main(
            [
                "train",
                *table,
                *words,
                "--pretrained-encoder",
                "huge",
                "--output-dir",
                str(tmp_path / "no"),
            ]
        )
        == 2
    )
    assert (
        "huge: no such file or folder, and no encoder that comes with aam ('tiny')"
        in capsys.readouterr().err
    )


def test_what_is_shipped_is_whole_and_small():
    assert set(shipped.shipped_encoders()) == {"16s", "16s-v4"}
    for name, folder in shipped.shipped_encoders().items():
        saved = load_model(folder, CPU)
        if saved.network is not None:
            assert saved.notes["seen_samples"], name
            learned = [
                parameter for parameter in saved.network.distance.parameters() if parameter.any()
            ]
            assert not learned, "distances are those of presence on the reference tree alone"
        assert (folder / MANIFEST).is_file()
        assert (folder / shipped.CARD).read_text(encoding="utf-8").startswith("# ")
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 6_000_000


def test_pretraining_starts_from_the_shipped_network_of_the_region(tmp_path, caplog):
    reference = ReferenceTree.from_arrays(
        read_arrays(shipped.shipped_encoders()["16s-v4"] / "reference.safetensors")
    )

    def start(sequences, **options):
        counts = sparse.csr_array(np.full((10, len(sequences)), 200))
        write_biom(
            make_table(counts, [f"s{row}" for row in range(10)], sequences), tmp_path / "table.biom"
        )
        model = ModelConfig(
            **{name: options.pop(name) for name in ("embedding_dim", "max_bp") if name in options}
        )
        metric = options.pop("unifrac_metric", "unifrac")
        depth = options.pop("rarefy_depth", 1000)
        data = DataConfig(table=tmp_path / "table.biom", rarefy_depth=depth, unifrac_metric=metric)
        runtime = RunConfig(output_dir=tmp_path / "run", device="cpu")
        config = FineTuneConfig(
            data=data, model=model, train=TrainConfig(**options), runtime=runtime
        )
        return load_inputs(config, folds=True).config

    reads = letters(reference.tokens[::200])
    with caplog.at_level("INFO", "aam"):
        config = start(reads)
    assert config.train.pretrained_encoder == Path("16s-v4")
    assert config.train.freeze_asvs
    assert config.model.embedding_dim == 96
    assert (
        "100% of the ASVs are of the region of 16s-v4, which comes with aam: training starts "
        "from it"
    ) in caplog.text
    # Repeated by its own run.json, it is the same.
    assert (
        start(reads, pretrained_encoder=Path("16s-v4"), freeze_asvs=True, nuc_penalty=0.0) == config
    )
    assert config.data.rarefy_depth == 1000
    for others in (
        {"from_scratch": True},
        {"embedding_dim": 64},
        {"max_bp": 200},
        {"unifrac_metric": "weighted"},
        {"nuc_mask_strategy": "span"},
        {"count_penalty": 0.0},
    ):
        assert start(reads, **others).train.pretrained_encoder is None, others
    shallow = start(reads[:4], rarefy_depth=None)
    assert (shallow.train.pretrained_encoder, shallow.data.rarefy_depth) == (Path("16s-v4"), 800)
    assert (
        start(letters(reverse_complement(reference.tokens[::200]))).train.pretrained_encoder is None
    )
    assert start([*reads, reads[0] * 3]).train.pretrained_encoder is None


@pytest.fixture(scope="module")
def placing() -> aam.Model:
    """The shipped reference, whose words are then counted once."""
    return aam.load("16s")


def write_reads(path: Path, reads: list[str]) -> Path:
    samples = range(6)
    rows = [
        "\t".join([read, *("900" if (at + s) % 3 else "300" for s in samples)])
        for at, read in enumerate(reads)
    ]
    path.write_text("\n".join(["\t".join(["#OTU ID", *(f"s{s}" for s in samples)]), *rows]) + "\n")
    return path


def letters(tokens: np.ndarray) -> list[str]:
    return ["".join(".ACGT"[token] for token in row) for row in tokens.tolist()]


def test_the_reference_gives_distances_of_any_region(placing, tmp_path, capsys):
    tokens = placing.models[0].reference.tokens[::1000]
    v1 = write_reads(tmp_path / "v1.tsv", letters(tokens[:, 20:250]))
    words = ["embed", "--model", "16s", "--table", str(v1), "--device", "cpu", "--output-dir"]
    asked = ["--distances", "unifrac", "weighted-normalized", "--format", "qza"]
    assert main([*words, str(tmp_path / "v1"), *asked]) == 0
    names = sorted(path.name for path in (tmp_path / "v1").iterdir())
    assert names == [
        "run.json",
        "samples.tsv",
        "taxa.tsv",
        "unifrac.qza",
        "weighted-normalized.qza",
    ]
    for metric in ("unifrac", "weighted-normalized"):
        written = read_distances(tmp_path / "v1" / f"{metric}.qza")
        np.testing.assert_allclose(
            placing.distances(v1, metric).filter(written.ids).data, written.values, atol=1e-6
        )
    v4 = write_reads(tmp_path / "v4.tsv", letters(tokens[:, 500:650]))
    one, other = (placing.branches(table, "weighted-normalized") for table in (v1, v4))
    assert one.shape == other.shape == (6, len(placing.models[0].reference.parent))
    assert np.corrcoef(one.to_numpy().ravel(), other.to_numpy().ravel())[0, 1] > 0.9
    # Every third sample is the same, and most like itself.
    alike = placing.similarity(v1, v4).to_numpy()
    assert (
        (alike.argmax(axis=1) % 3).tolist()
        == (alike.argmax(axis=0) % 3).tolist()
        == [0, 1, 2, 0, 1, 2]
    )
    assert alike.max() <= 1 + 1e-6
    for call in (placing.distances, placing.branches):
        with pytest.raises(
            aam.InputError, match="metric is 'weighted', expected unifrac or weighted-normalized"
        ):
            call(v1, "weighted")


def test_a_vector_is_of_its_sample_alone_and_distances_of_vectors_are_those_of_unifrac(
    placing, tmp_path
):
    rng, tokens = np.random.default_rng(0), placing.models[0].reference.tokens[::100, 500:650]
    reads = [*letters(tokens[:90]), *letters(reverse_complement(tokens[90:]))]
    # Samples of ASVs at neighbouring tips, some of which several samples have.
    counts = np.array(
        [
            (rng.random(len(reads)) < np.exp(-(((np.arange(len(reads)) - at) / 20) ** 2)))
            for at in range(0, 100, 2)
        ]
    )
    frame = pd.DataFrame(counts * 200, [f"s{at}" for at in range(len(counts))], reads)
    vectors = placing.embed(frame)
    assert vectors.shape == (len(counts), 1024)
    np.testing.assert_allclose((vectors**2).sum(axis=1), 1, atol=1e-5)
    between = np.sqrt(np.maximum(2 - 2 * vectors @ vectors.T, 0)).to_numpy()
    above = np.triu_indices(len(counts), 1)
    assert np.corrcoef(between[above], placing.distances(frame).data[above])[0, 1] > 0.95
    # Neither the other samples, nor the order of ASVs, nor the strand say anything.
    some = frame.iloc[[7, 3], rng.permutation(len(reads))].rename(
        columns=dict(zip(letters(tokens[90:]), reads[90:], strict=True))
    )
    np.testing.assert_allclose(placing.embed(some), vectors.iloc[[7, 3]], atol=1e-6)
    other = frame.iloc[[3]].rename(
        columns={reads[at]: letters(tokens[at : at + 1])[0] for at in range(90, len(reads))}
    )
    np.testing.assert_allclose(placing.embed(other), vectors.iloc[[3]], atol=1e-6)
    with pytest.raises(InputError, match="it places ASVs on a tree and has no network"):
        placing.embed(frame, asvs=True)


def test_taxa_of_reads_are_those_of_the_references_that_they_are_of(placing, tmp_path):
    reference = placing.models[0].reference
    rows = np.flatnonzero(["g__;" not in lineage for lineage in reference.lineages])
    tips = np.flatnonzero(np.isin(reference.taxon, rows))[::40]
    reads = letters(reference.tokens[tips, 300:600])
    table = write_reads(tmp_path / "reads.tsv", reads)
    words = [
        "embed",
        "--model",
        "16s",
        "--table",
        str(table),
        "--device",
        "cpu",
        "--output-dir",
        str(tmp_path / "new"),
    ]
    assert main(words) == 0
    named = read_taxonomy(tmp_path / "new" / "taxa.tsv").of(reads, reads)
    taxa = pd.read_csv(tmp_path / "new" / "taxa.tsv", sep="\t", index_col="asv")
    assert taxa.columns.tolist()[-4:] == [
        "genus",
        "genus.probability",
        "species",
        "species.probability",
    ]
    found = taxa.genus[reads]
    lineages = [
        reference.lineages[at].replace("; ", ";").rsplit(";s__", 1)[0]
        for at in reference.taxon[tips]
    ]
    right = np.array(found == lineages)
    assert right.mean() > 0.95
    assert taxa["genus.probability"][reads][right].median() > 0.8
    sure = taxa.columns[1::2][(taxa.loc[reads[0]].filter(like="probability") >= 0.7).to_numpy()][-1]
    assert ";".join(named[0]) == taxa.loc[reads[0], sure.removesuffix(".probability")]
    assert taxa.filter(like="probability").to_numpy().max() <= 1 + 1e-4


def test_a_taxonomy_of_other_tips_is_refused(placing, tmp_path):
    reference = placing.models[0].reference
    arrays = {**reference.to_arrays(), **reference.taxa_to_arrays()}
    assert ReferenceTree.from_arrays(arrays).lineages == reference.lineages
    for taxon in (reference.taxon[1:], reference.taxon + 5000, reference.taxon - 1):
        with pytest.raises(ValueError, match="taxonomy of the reference is not one of its tips"):
            ReferenceTree.from_arrays({**arrays, "taxon": taxon})
    assert ReferenceTree.from_arrays(reference.to_arrays()).lineages == ()


@pytest.mark.parametrize("column", ["month", "site"])
def test_embed_draws_the_samples_in_the_colours_of_a_metadata_column(
    placing, tmp_path, capsys, refused, column
):
    rng, samples = np.random.default_rng(0), 40
    reads = letters(placing.models[0].reference.tokens[::200, 500:650])
    counts = pd.DataFrame(
        (rng.random((samples, len(reads))) < 0.3) * 200, [f"s{at}" for at in range(samples)], reads
    )
    counts.T.to_csv(tmp_path / "table.tsv", sep="\t", index_label="#OTU ID")
    cells = {
        "month": rng.permutation(samples).astype(str),
        "site": rng.choice([f"place {at}" for at in range(12)], samples),
    }
    cells[column][3] = ""
    pd.DataFrame({"id": counts.index, **cells}).to_csv(
        tmp_path / "metadata.tsv", sep="\t", index=False
    )
    words = [
        "embed",
        "--model",
        "16s",
        "--table",
        str(tmp_path / "table.tsv"),
        "--device",
        "cpu",
        "--color-by",
    ]
    files = f"--metadata {tmp_path}/metadata.tsv --distances unifrac --output-dir {tmp_path}/new".split()
    assert main([*words, column, *files]) == 0
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {
        "run.json",
        "samples.tsv",
        "taxa.tsv",
        "unifrac.tsv",
        "pcoa-unifrac.svg",
        "pcoa-unifrac.png",
    }
    drawn = (tmp_path / "new" / "pcoa-unifrac.svg").read_text()
    assert drawn.count('data-tip="s') == samples
    assert "s3: missing" in drawn
    assert f"coloured by {column}" in drawn
    assert (": other" in drawn) == (column == "site")
    if column == "site":
        return
    counts[:2].T.to_csv(tmp_path / "two.tsv", sep="\t", index_label="#OTU ID")
    two = [word.replace("table.tsv", "two.tsv") for word in words]
    assert main([*two, column, *files[:-1], str(tmp_path / "no")]) == 2
    assert "--color-by: 2 samples, an ordination needs 3; leave it out" in capsys.readouterr().err
    assert "planet" in refused(main, [*words, "planet", *files, "--overwrite"])
    assert main([*words, column, "--output-dir", str(tmp_path / "no")]) == 2
    assert "--color-by: pass '--distances', '--metadata' too" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_the_nearest_samples_are_found_among_another_region_and_in_one_table(
    placing, tmp_path, refused
):
    tokens = placing.models[0].reference.tokens[::1000]
    v1, v4 = (
        write_reads(tmp_path / f"{name}.tsv", letters(tokens[:, part]))
        for name, part in (("v1", slice(20, 250)), ("v4", slice(500, 650)))
    )
    words = ["search", str(v1), "--device", "cpu", "--nearest", "2", "--output"]
    assert main([*words, str(tmp_path / "found.tsv"), "--among", str(v4)]) == 0
    found = pd.read_csv(tmp_path / "found.tsv", sep="\t")
    assert found.columns.tolist() == ["sample-id", "rank", "neighbour", "distance"]
    assert found["sample-id"].tolist() == [f"s{sample}" for sample in range(6) for _ in range(2)]
    # Every third sample is the same, so that the two nearest are those.
    numbers = found[["sample-id", "neighbour"]].map(lambda name: int(name[1:]) % 3)
    assert (numbers["sample-id"] == numbers.neighbour).all()
    alike = placing.similarity(v1, v4).stack()
    asked = pd.MultiIndex.from_frame(found[["sample-id", "neighbour"]])
    np.testing.assert_allclose(1 - alike[asked], found.distance, atol=2e-6)
    pd.testing.assert_frame_equal(placing.search(v1, v4, nearest=2), found)
    # In one table a sample does not find itself, and the distances are those of the matrix.
    assert (
        main([*words, str(tmp_path / "itself.tsv"), "--among", str(v1), "--distance", "unifrac"])
        == 0
    )
    itself = pd.read_csv(tmp_path / "itself.tsv", sep="\t")
    matrix = placing.distances(v1)
    assert (itself["sample-id"] != itself.neighbour).all()
    expected = [matrix[pair] for pair in zip(itself["sample-id"], itself.neighbour, strict=True)]
    np.testing.assert_allclose(itself.distance, expected, atol=2e-6)
    pd.testing.assert_frame_equal(placing.search(v1, distance="unifrac", nearest=2), itself)
    assert len(placing.search(v1, nearest=50)) == 6 * 5
    with pytest.raises(
        InputError, match="which has one sample, and that does not find itself; name another"
    ):
        placing.search(aam.read_table(v1)[:1])
    with pytest.raises(
        InputError, match="metric is 'jaccard', expected unifrac or weighted-normalized or cosine"
    ):
        placing.search(v1, distance="jaccard")
    assert "exists" in refused(main, [*words, str(tmp_path / "itself.tsv"), "--among", str(v1)])


@pytest.mark.slow
def test_a_person_is_found_among_192_by_another_region(placing, bench_data):
    """The figures of examples/encoder/16s.md."""
    folder = bench_data / "regions"
    person = pd.concat(
        pd.read_csv(folder / f"{name}.tsv", sep="\t", index_col=0) for name in ("v12", "v34")
    )
    alike = placing.similarity(folder / "v12.biom", folder / "v34.biom")
    alike = alike.rename(index=person.participant_id, columns=person.participant_id)
    assert (alike.idxmax(axis=1) == alike.index).mean() >= 0.965
    assert (alike.idxmax(axis=0) == alike.columns).mean() >= 0.965


def test_other_strands_are_turned_and_what_is_no_16s_is_refused(placing, tmp_path):
    tokens = placing.models[0].reference.tokens[::1000, 500:700]
    forward = write_reads(tmp_path / "forward.tsv", letters(tokens))
    backward = write_reads(tmp_path / "backward.tsv", letters(reverse_complement(tokens)))
    np.testing.assert_allclose(
        placing.distances(backward).data, placing.distances(forward).data, atol=1e-6
    )
    rng = np.random.default_rng(0)
    random = write_reads(tmp_path / "random.tsv", letters(rng.integers(1, 5, (10, 200))))
    with pytest.raises(InputError, match="100% of the ASVs are no 16S of bacteria or archaea"):
        placing.distances(random)


@pytest.mark.parametrize("length", [50, 75, 100, 150])
def test_short_random_sequences_are_no_16s_and_short_reads_are(placing, length):
    """A random sequence of 50 nucleotides shares up to a third of its 8-mers with the nearest
    reference.
    """
    reference = placing.models[0].reference
    random = np.random.default_rng(0).integers(1, 5, (500, length)).astype(np.uint8)
    assert reference.place_softly(random).is_16s.sum() <= 1
    with pytest.raises(
        InputError, match="table: its ASVs are too short to be told from random sequences"
    ):
        reference.place_softly(random[:, :20]).check_16s(
            sparse.csr_matrix(np.ones((1, len(random)))), "table"
        )
    rows = np.arange(0, 10_000, 100)
    reads = reference.tokens[rows, 500 : 500 + length].copy()
    reads[:, ::25] = reads[:, ::25] % 4 + 1
    assert reference.place_softly(reads).is_16s.mean() >= 0.97
