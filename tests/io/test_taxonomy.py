"""Taxonomy: read from QIIME 2 and from text, matched to ASVs by id, sequence or MD5; names for
people.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from aam.io.taxonomy import display_name, parse_lineage, rank_name, read_taxonomy, short_ids
from tests.archives import write_artifact
from tests.refusals import refusal

TEXT = "Feature ID\tTaxon\tConfidence\na\tk__B; p__F; g__; s__\t0.9\nACGT\tk__B \t1\n"


def md5(sequence: str) -> str:
    return hashlib.md5(sequence.encode()).hexdigest()


@pytest.mark.parametrize("suffix", [".tsv", ".qza"])
def test_lineages_are_read_and_matched(tmp_path: Path, suffix: str):
    text = f"{TEXT}\t\t\n{md5('TTTT')}\tk__Archaea; p__X\t1\n"
    path = tmp_path / f"taxonomy{suffix}"
    if suffix == ".qza":
        write_artifact(path, "FeatureData[Taxonomy]", "F", {"taxonomy.tsv": text.encode()})
    else:
        path.write_text(text)
    taxonomy = read_taxonomy(path)
    assert taxonomy.of(["a", "x", "TTTT", "GGGG"], ["CCCC", "ACGT", "TTTT", "GGGG"]) == (
        ("k__B", "p__F"),
        ("k__B",),
        ("k__Archaea", "p__X"),
        (),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Feature ID\tTaxon\na\tk__B\na\tk__C\nb\n",
            "line 3 ('a'): features that stand there twice",
        ),
        ("Feature ID\tTaxon\na\tk__B\nb\n", "line 3: expected a feature id and a taxon"),
        ("Feature ID\tTaxon\n\tk__B\n", "line 2: expected a feature id and a taxon"),
        ("sample\tph\n", "begins with 'sample\\tph', expected text with tabs that begins with 'Fe"),
        ("Feature ID,Taxon\n", "expected text with tabs"),
        ("", "begins with '', expected text"),
        (
            '"","Kingdom","Phylum"\n"a","B",NA\n',
            "in R write data.frame('Feature ID'=rownames(x), Taxon=",
        ),
        ("\x89HDF\r\n\x1a\n", "is HDF5, as BIOM tables are, expected text"),
    ],
)
def test_every_fault_is_named(tmp_path: Path, text: str, expected: str):
    path = tmp_path / "taxonomy.tsv"
    path.write_bytes(text.encode("latin-1"))
    assert expected in refusal(read_taxonomy, path)


def test_a_taxonomy_without_a_taxon_of_the_table_is_refused(tmp_path: Path):
    path = tmp_path / "taxonomy.tsv"
    for text, name in {"": "none", "a\tUnassigned\n": "'a'", "z\tk__B\n": "'z'"}.items():
        path.write_text(f"Feature ID \t Taxon\n{text}")
        message = refusal(read_taxonomy(path).of, ["a"], ["ACGT"])
        assert "gives no taxon to any of the 1 ASVs, by id, sequence or MD5" in message
        assert f"the table has ids like 'a', the file {name}; pass the taxonomy of" in message


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("k__Bacteria; p__Firmicutes; c__; o__", "Firmicutes, class unknown"),
        (
            "f__Muribaculaceae;g__uncultured;s__uncultured_bacterium",
            "Muribaculaceae, genus unknown",
        ),
        ("f__Lachnospiraceae;g__Blautia;s__uncultured_organism", "Blautia"),
        ("g__Blautia; s__human_gut_metagenome", "Blautia"),
        ("o__Clostridia_UCG-014;f__Clostridia_UCG-014", "Clostridia_UCG-014, genus unknown"),
        ("g__Agathobacter_164117; s__Agathobacter rectalis", "Agathobacter rectalis"),
        ("g__Clostridium_A; s__leptum", "Clostridium_A leptum"),
        ("Bacteria;Bacteroidota;Bacteroidia;uncultured", "Bacteroidia, order unknown"),
        ("d__Bacteria;__;__;__;__;__;__", "Bacteria, phylum unknown"),
        ("f__Ruminococcaceae; g__Incertae_Sedis", "Ruminococcaceae, genus unknown"),
        ("f__Family_XI; g__Unknown_Family", "Family_XI, genus unknown"),
        ("g__Blautia; s__obeum", "Blautia obeum"),
        ("g__Blautia; s__Blautia obeum", "Blautia obeum"),
        ("Bacteria; Firmicutes", "Firmicutes, class unknown"),
        ("Unassigned", "unassigned"),
        ("Unassigned;__;__", "unassigned"),
        ("nan", "unassigned"),
        ("D_0__Bacteria;D_1__Firmicutes;D_2__", "Firmicutes, class unknown"),
        ("D_5__Blautia;D_6__obeum;D_7__;D_8__", "Blautia obeum"),
        ("f__Oscillospiraceae; g__uncultured; s__human_gut", "Oscillospiraceae, genus unknown"),
        ("f__Oscillospiraceae; g__uncultured; s__rumen_sp", "Oscillospiraceae, genus unknown"),
        ("f__Lachnospiraceae; g__; s__obeum", "Lachnospiraceae, genus unknown"),
        ("f__Lachnospiraceae; g__; s__Blautia_obeum", "Blautia obeum"),
        ("g__Prevotella; s__Prevotella [Prevotella] copri", "Prevotella [Prevotella] copri"),
        ("g__Actinomyces; s__Schaalia_odontolytica", "Schaalia odontolytica"),
        ("g__Clostridium_sensu_stricto_1; s__Clostridium_butyricum", "Clostridium butyricum"),
        ("g__[Eubacterium]; s__rectale", "[Eubacterium] rectale"),
        ("f__Agaricaceae;g__Agaricales_gen_Incertae_sedis;s__Agaricales_sp", "Agaricales sp"),
        ("k__Bacteria; p__[Tenericutes]; c__Molli\tcutes", "Molli cutes, order unknown"),
    ],
)
def test_names_for_people(text: str, name: str):
    assert display_name(parse_lineage(text)) == name


@pytest.mark.parametrize(
    "text",
    [
        "a\tBacteria(100);Firmicutes(98);Clostridia(97);unclassified(97);\n",
        "OTU\tSize\tTaxonomy\na\t5\tBacteria(100);Firmicutes(98);Clostridia(97);\n",
        "a\td:Bacteria(1.0000),p:Firmicutes(0.99),c:Clostridia(0.9)\t+\td:Bacteria\n",
    ],
)
def test_the_command_of_the_message_converts(tmp_path: Path, monkeypatch, text: str):
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text(text)
    command = refusal(read_taxonomy, Path("FILE")).partition(" SINTAX with ")[2]
    subprocess.run(["bash", "-c", command.partition(" and in R ")[0]], check=True)
    (lineage,) = read_taxonomy(Path("taxonomy.tsv")).lineages.values()
    assert display_name(lineage) == "Clostridia, order unknown"


def test_ranks_come_from_prefixes():
    lineages = [parse_lineage("d__Bacteria; p__A"), parse_lineage("d__Archaea")]
    assert [rank_name(level, lineages) for level in range(2)] == ["domain", "phylum"]
    assert rank_name(1, [("Bacteria", "Firmicutes")]) == "level 2"


def test_short_ids_begin_the_ids_of_qiime2_and_differ():
    names = short_ids(["ACGT", "TTTT"])
    assert names == (md5("ACGT")[:10], md5("TTTT")[:10])
    # Two sequences whose MD5 begin with the same ten digits are hard to come by; equal sequences
    # stay equal.
    assert len(set(short_ids(["ACGT", "ACGT"]))) == 1
