"""The synthetic study: its files agree, its signal is where it is said to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from skbio import TreeNode
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, cross_val_predict

from aam.data.simulate import simulate
from aam.data.table import read_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("simulated") / "study"
    simulate(made, samples=200, asvs=400)
    return made


@pytest.fixture(scope="module")
def metadata(folder) -> pd.DataFrame:
    return pd.read_csv(folder / "metadata.tsv", sep="\t", index_col="sample-id")


def test_table_tree_and_metadata_agree(folder, metadata):
    table = read_table(folder / "table.biom")
    tree = TreeNode.read(str(folder / "tree.nwk"))
    assert {tip.name for tip in tree.tips()} == set(table.sequences)
    assert len(set(table.sequences)) == 400
    assert all(len(node.children) in (0, 2) for node in tree.traverse())
    assert list(metadata.index) == list(table.sample_ids)
    assert {len(sequence) for sequence in table.sequences} == {150}
    reads = pd.Series(table.depths, metadata.index).groupby(metadata["depth_confounded"]).median()
    assert 2.5 < reads["control"] / reads["case"] < 3.6
    assert (metadata.groupby("subject")[["fold", "batch"]].nunique() == 1).all(axis=None)


def test_communities_follow_ph_and_not_the_null_column(folder, metadata):
    presence = (read_table(folder / "table.biom").counts > 0).toarray().astype(float)
    r2 = {}
    for column in ("ph", "null"):
        model, folds = RidgeCV(np.logspace(0, 4, 9)), GroupKFold(5)
        truth = metadata[column]
        predicted = cross_val_predict(model, presence, truth, groups=metadata["subject"], cv=folds)
        r2[column] = r2_score(truth, predicted)
    assert r2["ph"] > 0.4
    assert r2["null"] < 0.1


def test_turnover_keeps_an_asv_in_one_fold(tmp_path):
    simulate(tmp_path, samples=40, asvs=100, turnover=1.0)
    folds = pd.read_csv(tmp_path / "metadata.tsv", sep="\t")["fold"].to_numpy()
    present = (read_table(tmp_path / "table.biom").counts > 0).toarray()
    assert all(len(set(folds[column])) == 1 for column in present.T)


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    sizes = ["--samples", "20", "--asvs", "50", "--seed", "3"]
    command = [sys.executable, "-m", "aam.data.simulate", str(tmp_path / "a"), *sizes]
    subprocess.run(command, check=True)
    for name, seed in (("b", 3), ("c", 4)):
        simulate(tmp_path / name, samples=20, asvs=50, seed=seed)
    for file in ("table.biom", "tree.nwk", "metadata.tsv"):
        first, same, other = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert first == same
        assert first != other
