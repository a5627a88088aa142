from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import biom
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from skbio import TreeNode
from sklearn.metrics import r2_score, roc_auc_score

from aam.commands.simulate import simulate_study
from aam.config_commands import SimulateConfig
from aam.data import simulate as simulate_module
from aam.data.simulate import (
    BATCHES,
    BIOMES,
    SEASONS,
    SimulatedStudy,
    communities,
    random_study,
    simulate,
    write_study,
)
from aam.errors import InputError

FILES = ["metadata.tsv", "run.json", "table.biom", "traits.tsv", "tree.nwk", "truth.json"]
SMALL = SimulateConfig(samples=40, asvs=120, seed=3)


def counts_of(study: SimulatedStudy) -> sparse.csr_matrix:
    return sparse.vstack(list(communities(study))).tocsr()


def columns(study: SimulatedStudy, *names: str) -> list[np.ndarray]:
    return [study.design[name] for name in names]


def rarefied(counts: sparse.csr_matrix, depth: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array(
        [rng.multivariate_hypergeometric(row, depth) for row in counts.toarray().astype(np.int64)]
    )


def similarity(sequences: list[str], scale: float = 0.1) -> np.ndarray:
    """Of every pair of ASVs, from the share of positions that differ."""
    letters = np.frombuffer("".join(sequences).encode(), np.uint8).reshape(len(sequences), -1)
    one_hot = np.concatenate([letters == base for base in b"ACGT"], axis=1).astype(np.float64)
    return np.exp(-(1 - one_hot @ one_hot.T / letters.shape[1]) / scale)


def held_out_r2(
    counts: np.ndarray, kernel: np.ndarray, target: np.ndarray, fold: np.ndarray
) -> float:
    """R2 by kernel ridge over samples whose ASVs are compared with `kernel`, pooled over the
    folds.
    """
    weight = np.log1p(counts)
    weight /= weight.sum(1, keepdims=True)
    between = weight @ kernel @ weight.T
    norm = np.sqrt(np.diag(between))
    between /= np.outer(norm, norm)
    guess = np.empty_like(target)
    for held_out in np.unique(fold):
        train, test = np.flatnonzero(fold != held_out), np.flatnonzero(fold == held_out)
        ridge = between[np.ix_(train, train)] + 0.05 * np.eye(len(train))
        mean = target[train].mean()
        guess[test] = mean + between[np.ix_(test, train)] @ np.linalg.solve(
            ridge, target[train] - mean
        )
    return float(r2_score(target, guess))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The study that ``aam simulate`` writes by default."""
    folder = tmp_path_factory.mktemp("simulate") / "study"
    simulate(SimulateConfig(output_dir=folder))
    return folder


@pytest.fixture(scope="module")
def study() -> SimulatedStudy:
    return random_study(SimulateConfig())


@pytest.fixture(scope="module")
def counts(study) -> sparse.csr_matrix:
    return counts_of(study)


@pytest.fixture(scope="module")
def metadata(folder) -> pd.DataFrame:
    return pd.read_csv(
        folder / "metadata.tsv", sep="\t", index_col="sample-id", dtype={"fold": str}
    )


# --- files -------------------------------------------------------------------------------------


def test_table_tree_and_metadata_agree(folder, counts, metadata):
    table, tree = biom.load_table(str(folder / "table.biom")), TreeNode.read(folder / "tree.nwk")
    sequences = list(table.ids("observation"))
    assert table.shape == (1_000, 300)
    assert {tip.name for tip in tree.tips()} == set(sequences)
    assert list(table.ids()) == list(metadata.index)
    assert abs(table.matrix_data.T - counts).sum() == 0
    assert (table.matrix_data.sum(0) > 0).all()
    assert (table.matrix_data.sum(1) > 0).all()
    assert {len(sequence) for sequence in sequences} == {150}
    assert set("".join(sequences)) == set("ACGT")
    traits = pd.read_csv(folder / "traits.tsv", sep="\t", index_col="feature-id")
    assert list(traits.index) == sequences
    np.testing.assert_allclose(traits.mean(), 0, atol=1e-4)


def test_every_node_has_two_children_and_branches_are_those_of_16s(folder):
    tree = TreeNode.read(folder / "tree.nwk")
    assert {len(node.children) for node in tree.non_tips(include_self=True)} == {2}
    assert min(node.length for node in tree.traverse(include_self=False)) >= 0
    distance = tree.cophenet().data.copy()
    pairs = distance[np.triu_indices(len(distance), 1)]
    assert pairs.max() < 0.7
    assert 0.2 < np.median(pairs) < 0.4
    np.fill_diagonal(distance, np.inf)
    assert 0.002 < np.median(distance.min(1)) < 0.03


def test_metadata_columns(metadata):
    assert list(metadata) == [
        "ph",
        "biome",
        "season",
        "subject",
        "batch",
        "depth_confounded",
        "null",
        "fold",
    ]
    assert not metadata.isna().any(axis=None)
    assert metadata["ph"].between(1, 14).all()
    assert metadata["ph"].std() > 1
    for column, classes in (("biome", BIOMES), ("season", SEASONS), ("batch", BATCHES)):
        assert set(metadata[column]) == set(classes)
    assert set(metadata["depth_confounded"]) == {"case", "control"}
    assert metadata["biome"].value_counts().between(60, 90).all()
    assert metadata.groupby("subject").size().max() > 1
    assert (metadata.groupby("subject")["fold"].nunique() == 1).all()
    assert set(metadata["fold"]) == set("01234")
    assert metadata["fold"].value_counts().between(57, 63).all()


def test_equal_settings_give_equal_bytes_and_another_seed_others(tmp_path):
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        simulate(dataclasses.replace(SMALL, output_dir=tmp_path / name, seed=seed))
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == FILES
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        assert (tmp_path / "one" / name).read_bytes() != (tmp_path / "other" / name).read_bytes()


def test_truth_is_that_of_the_table(tmp_path):
    returned = write_study(random_study(SMALL), tmp_path)
    truth = json.loads((tmp_path / "truth.json").read_text(encoding="utf-8"))
    assert returned == truth
    options = {"samples": 40, "asvs": 120, "subjects": 8, "length": 150, "depth": 8_000}
    assert truth["settings"] == {**options, "asv_turnover": 0.0, "seed": 3}
    table = biom.load_table(str(tmp_path / "table.biom"))
    assert truth["density"] == pytest.approx(table.nnz / (40 * 120))
    assert truth["median_depth"] == np.median(table.sum("sample"))
    assert truth["seen_in_one_sample"] == (table.pa(inplace=False).sum("observation") == 1).mean()


@pytest.mark.parametrize("turnover", [0.0, 1.0])
def test_the_smallest_study(tmp_path, turnover):
    settings = SimulateConfig(samples=20, asvs=50, length=50, depth=100, asv_turnover=turnover)
    truth = write_study(random_study(settings), tmp_path)
    assert truth["asvs"] == 50
    assert truth["ph_r2"] is truth["biome_accuracy"] is truth["median_richness"] is None, (
        "too shallow for the oracle"
    )
    assert len(set(random_study(settings).sequences)) == 50


def test_a_small_study_is_what_it_was():
    """Sequences, tree and counts of version 0.1; the files hold the version of aam too."""
    study = random_study(SMALL)
    counts = counts_of(study)
    values = (counts.data, counts.indices, counts.indptr)
    digest = hashlib.sha256(
        "".join([*study.sequences, *study.tree.newick(study.sequences)]).encode()
    )
    for each in values:
        digest.update(each.astype(np.int64).tobytes())
    assert digest.hexdigest() == "15398535e9cd36d6d66e64f5b244e5dc160141b3996fc1fae31dc06b0c87bf0d"


def test_pools_of_many_asvs_follow_the_same_prevalence(monkeypatch):
    """Repeated single draws and noise on every ASV draw pools of one distribution."""
    study = random_study(SimulateConfig(samples=20, asvs=400, asv_turnover=0.5))
    allowed = (study.home < 0) | (study.home == 0)

    pools = 250

    def inclusion() -> np.ndarray:
        drawn = [
            simulate_module._pool(study, 0, np.random.default_rng(number))
            for number in range(pools)
        ]
        assert all(
            len(set(pool)) == simulate_module.POOL and (np.diff(pool) > 0).all() for pool in drawn
        )
        return np.bincount(np.concatenate(drawn), minlength=400) / pools

    with_noise = inclusion()
    monkeypatch.setattr(simulate_module, "MOST_WITH_NOISE", 0)
    drawn = inclusion()
    assert drawn[~allowed].sum() == 0
    share = (drawn + with_noise) / 2
    varied = (share > 0) & (share < 1)
    # Of all ASVs together: prevalences to the power of 0.9 make it 1.4, to the power of 0.8 2.9.
    deviation = (drawn - with_noise)[varied] / np.sqrt(2 * (share * (1 - share))[varied] / pools)
    assert np.mean(deviation**2) < 1.3
    assert abs(deviation).max() < 4


# --- what it looks like ------------------------------------------------------------------------


def test_it_looks_like_16s(counts):
    depth = counts.sum(1).A1
    assert 7_000 < np.median(depth) < 9_500
    assert 0.4 < np.log(depth).std() < 1.1
    drawn = rarefied(counts, 1_000)
    assert 40 <= np.median((drawn > 0).sum(1)) <= 80
    assert 0.02 < counts.nnz / np.prod(counts.shape) < 0.1
    prevalence = (drawn > 0).sum(0)
    assert 0.25 < (prevalence == 1).sum() / (prevalence > 0).sum() < 0.6, (
        "many ASVs are seen in one sample"
    )
    batch = drawn[np.random.default_rng(0).choice(len(drawn), 64, replace=False)] > 0
    assert 0.15 <= batch.any(0).sum() / batch.sum() <= 0.4


# --- what can be learned -----------------------------------------------------------------------


def test_the_oracle_is_good_and_not_perfect(folder):
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    assert 0.75 < truth["ph_r2"] < 0.92
    assert 0.8 < truth["biome_accuracy"] < 0.95
    assert truth["biome_chance"] == 0.25


def test_ph_is_in_the_communities_and_null_is_not(study, counts):
    drawn, kernel = rarefied(counts, 1_000), similarity(study.sequences)
    assert held_out_r2(drawn, kernel, *columns(study, "ph", "fold")) > 0.6
    assert held_out_r2(drawn, kernel, *columns(study, "null", "fold")) < 0.05


def test_depth_alone_tells_cases_and_rarefaction_removes_it(study, counts):
    case, fold = columns(study, "depth_confounded", "fold")
    assert roc_auc_score(case, -counts.sum(1).A1) > 0.9
    drawn = rarefied(counts, 1_000)
    assert abs(roc_auc_score(case, (drawn > 0).sum(1)) - 0.5) < 0.1
    assert held_out_r2(drawn, np.eye(drawn.shape[1]), case.astype(float), fold) < 0.05


@pytest.mark.parametrize("column", ["biome", "season", "batch"])
def test_communities_follow_the_traits(study, counts, column):
    """In the samples of a class, ASVs with an affinity to that class are more abundant than
    elsewhere.
    """
    (code,) = columns(study, column)
    first = {"biome": 1, "season": 5, "batch": 9}[column]
    share = counts.multiply(1 / counts.sum(1)) @ study.traits[:, first : first + 4]
    for each in range(4):
        assert share[code == each, each].mean() > share[code != each, each].mean() + 0.1


def test_with_full_turnover_only_sequences_carry_over_to_held_out_samples():
    study = random_study(SimulateConfig(asv_turnover=1.0))
    (ph, fold), counts = columns(study, "ph", "fold"), counts_of(study)
    is_present = np.array([(counts[fold == each].sum(0).A1 > 0) for each in range(5)])
    assert (is_present.sum(0) == 1).all()
    drawn = rarefied(counts, 1_000)
    assert held_out_r2(drawn, similarity(study.sequences), ph, fold) > 0.5
    others = np.random.default_rng(1).permutation(len(study.sequences))
    assert (
        held_out_r2(drawn, similarity([study.sequences[place] for place in others]), ph, fold) < 0.1
    )
    assert held_out_r2(drawn, np.eye(len(study.sequences)), ph, fold) < 0.1


# --- bad input ---------------------------------------------------------------------------------


def test_all_bad_settings_are_named_at_once(tmp_path):
    settings = SimulateConfig(tmp_path / "study", 10, 3, 400, 20, 1, 1.5)
    with pytest.raises(InputError) as error:
        simulate(settings)
    assert error.value.problems == (
        "--samples: 10 found, expected at least 20",
        "--subjects: 400 found, expected 5 to the number of samples, 10",
        "--asvs: 3 found, expected at least 50",
        "--length: 20 found, expected at least 50 nucleotides",
        "--depth: 1 found, expected at least 100 reads",
        "--asv-turnover: 1.5 found, expected 0 to 1",
    )
    assert not (tmp_path / "study").exists()


def test_the_command_says_in_words_what_it_wrote(tmp_path, capsys):
    simulate_study(dataclasses.replace(SMALL, output_dir=tmp_path / "study"))
    truth = json.loads((tmp_path / "study" / "truth.json").read_text())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        f"{tmp_path / 'study'}: {SMALL.samples} samples of {truth['subjects']} subjects"
    )
    assert not any(mark in line for line in lines[1:] for mark in "{}_'")
    assert all(len(line) <= 80 for line in lines[1:]), lines
    assert (
        f"    biome: accuracy {truth['biome_accuracy']:#.3g}, by chance "
        f"{truth['biome_chance']:#.3g}"
    ) in lines
    simulate_study(
        dataclasses.replace(SMALL, output_dir=tmp_path / "shallow", samples=20, depth=200)
    )
    assert "    ph: R2 -" in capsys.readouterr().out.splitlines()
