"""The reference of any region: distances, vectors and taxa of tables, and the search in collections."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import aam
from aam.cli import main
from aam.data.primers import LETTER_BITS, PRIMERS, find_primers
from aam.data.tokens import reverse_complement
from aam.encoders import installed
from aam.errors import InputError
from aam.io.matrices import read_distances
from aam.predict.saved_model import load_model
from aam_16s.__main__ import main as plugin
from aam_16s.encoders import V4
from aam_16s.search import branches, place, search, similarity

ANY_REGION = Path(__file__).parents[1] / "16s"

# Parts of the gene.
V1, V4_READS = slice(20, 250), slice(500, 650)


@pytest.mark.parametrize("folder", [ANY_REGION, V4.folder], ids=["16s", "16s-v4"])
def test_models_are_whole_and_small(folder):
    saved = load_model(folder, torch.device("cpu"))
    assert saved.reference is not None
    if saved.network is not None:
        assert saved.notes.seen_samples
        assert {parameter.dtype for parameter in saved.network.parameters()} == {torch.float32}
    files = list(folder.iterdir())
    assert max(path.stat().st_size for path in files) < 1_000_000
    assert sum(path.stat().st_size for path in files) < 6_000_000


def test_one_encoder_is_installed(capsys):
    assert [entry.value for entry in installed().values()] == ["aam_16s.encoders:V4"]
    assert [path.name for path in V4.folder.parent.iterdir()] == ["16s-v4"]
    assert plugin(["card", "16s-v4"]) == 0
    assert capsys.readouterr().out.startswith("# 16S V4 ")


def test_distances_of_any_region(placing, tree, letters, table_of, tmp_path):
    tokens = tree.tokens[::1000]
    v1, v4 = table_of(letters(tokens[:, V1]), "v1"), table_of(letters(tokens[:, V4_READS]), "v4")
    words = [
        "embed",
        "--model",
        str(ANY_REGION),
        "--table",
        str(v1),
        "--device",
        "cpu",
        "--output-dir",
    ]
    asked = ["--distances", "unifrac", "weighted-normalized"]
    assert main([*words, str(tmp_path / "out"), *asked]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    files = {"unifrac.tsv", "weighted-normalized.tsv"}
    assert names == {"run.json", "samples.tsv", "taxa.tsv", *files}
    for metric in ("unifrac", "weighted-normalized"):
        written = read_distances(tmp_path / "out" / f"{metric}.tsv")
        np.testing.assert_allclose(
            placing.distances(v1, metric).filter(written.ids).data, written.values, atol=1e-6
        )
    first, second = (branches(table, "weighted-normalized", placing) for table in (v1, v4))
    assert first.shape == second.shape == (6, len(tree.parent))
    assert np.corrcoef(first.to_numpy().ravel(), second.to_numpy().ravel())[0, 1] > 0.9
    # Every third sample is the same, and most similar to itself.
    alike = similarity(v1, v4, placing).to_numpy()
    assert (alike.argmax(axis=1) % 3).tolist() == [0, 1, 2, 0, 1, 2]
    assert (alike.argmax(axis=0) % 3).tolist() == [0, 1, 2, 0, 1, 2]
    assert alike.max() <= 1 + 1e-6
    for call in (placing.distances, branches):
        with pytest.raises(InputError, match="metric is 'weighted', expected unifrac or weighted-"):
            call(v1, "weighted")


def test_a_vector_depends_on_its_sample_only(placing, tree, letters, samples_of):
    tokens = tree.tokens[::100, V4_READS]
    forward = letters(tokens)
    reads = [*forward[:90], *letters(reverse_complement(tokens[90:]))]
    frame = samples_of(reads, 50)
    vectors = placing.embed(frame)
    assert vectors.shape == (50, 1024)
    np.testing.assert_allclose((vectors**2).sum(axis=1), 1, atol=1e-5)
    between = np.sqrt(np.maximum(2 - 2 * vectors @ vectors.T, 0)).to_numpy()
    above = np.triu_indices(50, 1)
    assert np.corrcoef(between[above], placing.distances(frame).data[above])[0, 1] > 0.95
    # Other samples, the order of ASVs and the strand change nothing.
    order = np.random.default_rng(0).permutation(len(reads))
    changed = frame.iloc[[7, 3], order].rename(columns=dict(zip(reads, forward, strict=True)))
    np.testing.assert_allclose(placing.embed(changed), vectors.iloc[[7, 3]], atol=1e-6)
    with pytest.raises(InputError, match="it places ASVs on a reference and has no network"):
        placing.embed(frame, asvs=True)


def test_taxa_of_reads_are_those_of_the_references_that_they_are_from(
    tree, letters, table_of, tmp_path
):
    rows = np.flatnonzero(["g__;" not in lineage for lineage in tree.lineages])
    tips = np.flatnonzero(np.isin(tree.taxon, rows))[::40]
    reads = letters(tree.tokens[tips, 300:600])
    words = [
        "embed",
        "--model",
        str(ANY_REGION),
        "--table",
        str(table_of(reads)),
        "--device",
        "cpu",
    ]
    assert main([*words, "--output-dir", str(tmp_path / "new")]) == 0
    taxa = pd.read_csv(tmp_path / "new" / "taxa.tsv", sep="\t", index_col="asv")
    assert taxa.columns.tolist()[-4:-2] == ["genus", "genus.probability"]
    found = taxa.genus[reads]
    of_tips = [tree.lineages[at].replace("; ", ";") for at in tree.taxon[tips]]
    right = np.array(found == [lineage.rsplit(";s__", 1)[0] for lineage in of_tips])
    assert right.mean() > 0.95
    assert taxa["genus.probability"][reads][right].median() > 0.8
    assert taxa.filter(like="probability").to_numpy().max() <= 1 + 1e-4


def test_the_nearest_samples_are_found_in_another_region_and_in_one_table(
    placing, tree, letters, table_of, tmp_path, capsys
):
    tokens = tree.tokens[::1000]
    v1, v4 = table_of(letters(tokens[:, V1]), "v1"), table_of(letters(tokens[:, V4_READS]), "v4")
    words = ["search", str(v1), "--model", str(ANY_REGION), "--nearest", "2", "--output"]
    assert plugin([*words, str(tmp_path / "found.tsv"), "--among", str(v4)]) == 0
    found = pd.read_csv(tmp_path / "found.tsv", sep="\t")
    assert found.columns.tolist() == ["sample-id", "rank", "neighbour", "distance"]
    assert found["sample-id"].tolist() == [f"s{sample}" for sample in range(6) for _ in range(2)]
    numbers = found[["sample-id", "neighbour"]].map(lambda name: int(name[1:]) % 3)
    assert (numbers["sample-id"] == numbers.neighbour).all()
    asked = pd.MultiIndex.from_frame(found[["sample-id", "neighbour"]])
    alike = similarity(v1, v4, placing).stack()
    np.testing.assert_allclose(1 - alike[asked], found.distance, atol=2e-6)
    # In one table a sample does not find itself, and the distances are those of the matrix.
    itself = search(v1, model=placing, distance="unifrac", nearest=2)
    assert (itself["sample-id"] != itself.neighbour).all()
    matrix = placing.distances(v1)
    expected = [matrix[pair] for pair in zip(itself["sample-id"], itself.neighbour, strict=True)]
    np.testing.assert_allclose(itself.distance, expected, atol=2e-6)
    assert len(search(v1, model=placing, nearest=50)) == 6 * 5
    with pytest.raises(InputError, match="which has one sample, and that does not find itself"):
        search(aam.read_table(v1)[:1], model=placing)
    with pytest.raises(InputError, match="metric is 'jaccard', expected unifrac or weighted-norm"):
        search(v1, model=placing, distance="jaccard")
    capsys.readouterr()
    assert plugin([*words, str(tmp_path / "found.tsv"), "--among", str(v4)]) == 2
    assert "exists already; choose another output or pass --overwrite" in capsys.readouterr().err
    assert plugin([*words, str(tmp_path / "new.tsv"), "--among", str(tmp_path / "none")]) == 2
    assert "none: no such file" in capsys.readouterr().err


@pytest.mark.slow
def test_a_person_is_found_among_192_by_another_region(placing, bench_data):
    """The figures of the card of 16s."""
    folder = bench_data / "regions"
    person = pd.concat(
        pd.read_csv(folder / f"{name}.tsv", sep="\t", index_col=0) for name in ("v12", "v34")
    )
    alike = similarity(folder / "v12.biom", folder / "v34.biom", placing)
    alike = alike.rename(index=person.participant_id, columns=person.participant_id)
    assert (alike.idxmax(axis=1) == alike.index).mean() >= 0.965
    assert (alike.idxmax(axis=0) == alike.columns).mean() >= 0.965


def test_reverse_complements_are_turned_and_what_is_not_16s_is_refused(
    placing, tree, letters, table_of
):
    tokens = tree.tokens[::1000, 500:700]
    forward = table_of(letters(tokens), "forward")
    backward = table_of(letters(reverse_complement(tokens)), "backward")
    np.testing.assert_allclose(
        placing.distances(backward).data, placing.distances(forward).data, atol=1e-6
    )
    random = letters(np.random.default_rng(0).integers(1, 5, (10, 200)))
    with pytest.raises(InputError, match="100% of the ASVs are no 16S of bacteria or archaea"):
        placing.distances(table_of(random, "random"))


@pytest.mark.parametrize("length", [50, 75, 100, 150])
def test_short_random_sequences_are_not_16s_and_short_reads_are(tree, length):
    """A random sequence of 50 nucleotides shares up to a third of its 8-mers with the nearest
    reference.
    """
    random = np.random.default_rng(0).integers(1, 5, (500, length)).astype(np.uint8)
    assert tree.place_softly(random).is_16s.sum() <= 1
    counts, short = sparse.csr_matrix(np.ones((1, len(random)))), tree.place_softly(random[:, :20])
    with pytest.raises(InputError, match="its ASVs are too short to be told from random sequences"):
        short.check_16s(counts, "table")
    reads = tree.tokens[::100, 500 : 500 + length].copy()
    reads[:, ::25] = reads[:, ::25] % 4 + 1
    assert tree.place_softly(reads).is_16s.mean() >= 0.97


def test_primers_and_several_regions_are_named(placing, tree, letters, table_of, caplog):
    rng, tokens = np.random.default_rng(0), tree.tokens[::400]
    v4 = letters(tokens[:, 525:675])
    bases = {
        letter: [b for b in "ACGT" if LETTER_BITS[b] & LETTER_BITS[letter]]
        for letter in LETTER_BITS
    }
    primer = lambda: "".join(rng.choice(bases[letter]) for letter in PRIMERS["515F"])  # noqa: E731
    primed = table_of([primer() + read for read in v4], "primed")
    with caplog.at_level(logging.WARNING, "aam"):
        placing.distances(primed)
    (message,) = [record.message for record in caplog.records if "primer" in record.message]
    assert "(100%) still contain a primer: 515F (GTGYCAGCMGCCGCGGTAA) in 25 ASVs" in message
    assert "pass --trim-primers" in message
    caplog.clear()
    cut = placing.distances(primed, trim_primers=True)
    np.testing.assert_allclose(cut.data, placing.distances(table_of(v4, "v4")).data, atol=1e-6)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    turned = letters(reverse_complement(tokens[:15, 20:170]))
    place(table_of([*v4, *turned], "mixed"), placing)
    (message,) = [record.message for record in caplog.records if "regions" in record.message]
    assert "begin before V4" in message
    assert "begin before V1" in message


def test_reads_of_real_16s_hold_no_primer(tree, letters):
    for start in (60, 400, 560, 850):
        found, _ = find_primers(letters(tree.tokens[::50, start : start + 150]))
        assert (found >= 0).any(axis=0).mean() < 0.05


YEAST_18S = (
    "GTCTGGTGCCAGCAGCCGCGGTAATTCCAGCTCCAATAGCGTATATTAAAGTTGTTGCAGTTAAAAAGCTCGTAGTTGAACTTTGGGCCCGGTTGGCCGGTCCGATTTTTTCG"
    "TGTACTGGATTTCCAACGGGGCCTTTCCTTCTGGCTAACCTTGAGTCCTTGTGGCTCTTGGCGAACCAGGACTTTTACTTTGAAAAAATTAGAGTGTTCAAAGCAGGCGTATT"
)
YEAST_ITS = (
    "AACTTTCAACAACGGATCTCTTGGTTCTCGCATCGATGAAGAACGCAGCGAAATGCGATACGTAATGTGAATTGCAGAATTCCGTGAATCATCGAATCTTTGAACGCACATTG"
    "CGCCCCTTGGTATTCCAGGGGGCATGCCTGTTTGAGCGTCATTTCCTTCTCAAACATTCTGTTTGGTAGTGAGTGATACTCTTTGGAGTTAACTTGAAATTGCTGGCCTTTTC"
)


@pytest.mark.parametrize(
    ("gene", "length"), [(YEAST_18S, 100), (YEAST_ITS, 150)], ids=["18S", "ITS"]
)
def test_tables_of_18s_and_its_are_refused(placing, table_of, gene, length):
    reads = sorted({gene[at : at + length] for at in range(0, 60, 3)})
    with pytest.raises(InputError, match=r"of their 8-mers with any sequence of the reference"):
        placing.distances(table_of(reads))
