"""How the shipped encoder is made: what it learns masked bases from, and the whole recipe on two
tiny studies.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from skbio import TreeNode

from aam.config import DataConfig
from aam.data.inputs import read_inputs
from aam.data.simulate import simulate
from aam.data.study import make_study
from aam.data.table import read_table
from aam.errors import FINISHED
from aam.files.atomic import MANIFEST
from aam.io.phylogeny import parse_newick
from aam.predict.saved_model import load_model
from aam_16s.recipe import __main__ as recipe
from aam_16s.recipe.__main__ import ASVS_OF_A_SET, Source, prevalent, random_sets
from aam_16s.recipe.taxonomy import distances

DRAW = np.random.default_rng(0)


def sequences(number: int, length: int) -> list[str]:
    return ["".join("ACGT"[base] for base in DRAW.integers(0, 4, length)) for _ in range(number)]


def test_sets_hold_each_asv_once_and_are_of_like_length():
    short, long = sequences(2 * ASVS_OF_A_SET, 40), sequences(ASVS_OF_A_SET + 5, 60)
    table = random_sets({*long, *short})
    assert table.counts.shape == (3, len(short) + len(long))
    assert (np.diff(table.counts.indptr) == ASVS_OF_A_SET).all()
    assert len(set(table.counts.indices.tolist())) == 3 * ASVS_OF_A_SET
    assert list(table.sequences) == sorted([*short, *long])
    lengths = [
        {len(table.sequences[column]) for column in table.row(row)[0].tolist()} for row in range(3)
    ]
    assert lengths == [{40}, {40}, {60}]
    assert table.row(0)[0].tolist() != list(range(ASVS_OF_A_SET)), "drawn at random"


def test_an_asv_of_one_sample_is_not_prevalent(tmp_path):
    table = tmp_path / "table.tsv"
    a, b, c = sequences(3, 30)
    table.write_text(f"#OTU ID\ts0\ts1\ts2\n{a}\t600\t600\t9\n{b}\t0\t0\t600\n{c}\t0\t600\t0\n")
    alone = tmp_path / "alone.tsv"
    alone.write_text(f"#OTU ID\tt0\tt1\n{c}\t700\t0\n{b}\t0\t400\n")
    assert prevalent([read_table(table), read_table(alone)]) == sorted({a, c}), (
        "b has one sample of enough reads"
    )


@pytest.mark.slow
def test_the_recipe_makes_an_encoder_that_ships(tmp_path, monkeypatch):
    data, output, shipped = tmp_path / "data", tmp_path / "output", tmp_path / "shipped"
    simulate(data / "first", samples=40, asvs=150)
    # Two studies of one region.
    shutil.copytree(data / "first", data / "second")
    monkeypatch.setattr(
        recipe, "SOURCES", (Source("first", has_tree=True), Source("second", has_tree=True))
    )
    monkeypatch.setattr(
        recipe, "SIZES", ("--embedding-dim", "16", "--attention-layers", "1", "--max-bp", "160")
    )
    monkeypatch.setattr(recipe, "ASVS_OF_A_SET", 10)
    short = ("--rarefy-depth", "10", "--epochs", "2")
    monkeypatch.setattr(recipe, "BASES", (*recipe.BASES[4:], *short))
    # The tree of ASVs that came without one, which the recipe keeps where it is there already.
    output.mkdir()
    (output / "tree.nwk").write_bytes((data / "first" / "tree.nwk").read_bytes())
    card = tmp_path / "card.md"
    card.write_text("# A card\n")
    assert recipe.run(data, output, card, shipped) == FINISHED

    saved = load_model(shipped, torch.device("cpu"))
    assert saved.network.distance is None
    config = DataConfig(table=data / "second" / "table.biom", rarefy_depth=500)
    study = make_study(read_inputs(config), config, None, 0)
    placed = study.placed_on(saved.reference)
    assert placed.sample_input is not None
    assert len(placed.sample_input.features) == 150
    assert {name.split("/")[-1].split("-")[0] for name in saved.notes.seen_samples} == {"sample"}
    text = (shipped / "card.md").read_text()
    assert text.startswith("# A card\n\nWeights: ")
    assert (shipped / MANIFEST).is_file()
    # What is done already is not done again.
    before = (output / "distances" / "model" / MANIFEST).read_bytes()
    assert recipe.run(data, output) == FINISHED
    assert (output / "distances" / "model" / MANIFEST).read_bytes() == before


def test_distances_on_a_tree_are_those_of_scikit_bio():
    text = "(((a:1,b:2):3,(c:4,(d:5,e:6):7):8):9,f:10);"
    tree = parse_newick(text)
    first, second = np.triu_indices(len(tree.tips))
    expected = TreeNode.read([text]).tip_tip_distances()
    names = [
        (tree.tips[one], tree.tips[other])
        for one, other in zip(first.tolist(), second.tolist(), strict=True)
    ]
    measured = distances(tree, tree.tip_nodes[first], tree.tip_nodes[second])
    assert measured.tolist() == [expected[pair] for pair in names]
