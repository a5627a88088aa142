"""A simulated study with 20 causal ASVs among 1,000: importance finds them, and nothing where
labels are permuted.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aam.config import DataConfig
from aam.data.simulate import simulate
from aam.data.splits import kfold
from aam.data.targets import Targets, TargetSpec
from aam.evaluate.metrics import auroc
from aam.explain.effects import FALSE_DISCOVERIES, explain_samples, importance_of
from aam.io.metadata import read_metadata
from aam.options import RuntimeConfig
from aam.predict.estimator import Samples
from tests.data.labels import labelled
from tests.data.studies import load_study
from tests.predict.samples import fit_blend, saved_model

pytestmark = pytest.mark.slow

CAUSAL, FOLDS, PASSES, TARGET = 20, 5, 2, "y"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("causal") / "study"
    simulate(folder, samples=400, asvs=1000, length=100, seed=1)
    made = load_study(DataConfig(table=Path(folder) / "table.biom"))
    return dataclasses.replace(made, metadata=read_metadata(Path(folder) / "metadata.tsv"))


@pytest.fixture(scope="module")
def truth(study):
    """The causal ASVs among those of 10 to 90 % of the samples, their signs, and a target that is
    80 % theirs.
    """
    rng = np.random.default_rng(101)
    present = (study.table.counts.toarray() > 0).astype(float)
    prevalence = present.mean(axis=0)
    common = np.flatnonzero((prevalence >= 0.1) & (prevalence <= 0.9))
    causal = rng.choice(common, CAUSAL, replace=False)
    signs = rng.permutation(np.repeat([1.0, -1.0], CAUSAL // 2))
    signal = (present[:, causal] - prevalence[causal]) @ signs
    values = signal + 0.5 * signal.std() * rng.standard_normal(len(signal))
    return causal, signs, (values - values.mean()) / values.std()


def explained(study, values) -> pd.DataFrame:
    """The importance in samples that the models of folds by subject have not seen, all members but
    the network.
    """
    ids = study.table.sample_ids
    subjects = [str(subject) for subject in study.metadata.values("subject", ids)]
    targets = Targets((TargetSpec(TARGET, "numeric", transform="none", bounds=(-9.0, 9.0)),))
    with_target = labelled(study, target=values.astype(np.float32)[:, None])
    models, samples = [], []
    for split in kfold(ids, FOLDS, subjects, values, 0.0, seed=0):
        rows = study.rows(split.ids("train"))
        learned = Samples.of_study(with_target, rows)
        blend = fit_blend(with_target, targets, learned, groups=[subjects[row] for row in rows])
        models.append(saved_model(targets=targets, depth=study.depth, blend=blend))
        samples.append(split.ids("test"))
    how = (RuntimeConfig(), PASSES)
    (effects,) = explain_samples(models, with_target, samples, ids, [values], *how)
    return importance_of(effects, np.array(subjects, object))


def test_causal_asvs_are_the_most_important_and_have_their_signs(study, truth):
    causal, signs, values = truth
    importance = explained(study, values)
    assert len(study.table.sequences) == 1000
    assert importance.index.isin(causal).sum() == CAUSAL
    assert auroc(importance.index.isin(causal), importance["importance"].to_numpy()) >= 0.95
    assert (np.sign(importance["effect"][causal]) == signs).mean() >= 0.95
    discoveries = importance.index[importance["q"] <= FALSE_DISCOVERIES]
    assert len(discoveries) >= 3
    assert discoveries.isin(causal).mean() >= 0.8


def test_nothing_stands_out_where_labels_are_permuted(study, truth):
    importance = explained(study, np.random.default_rng(0).permutation(truth[2]))
    assert not (importance["q"] <= FALSE_DISCOVERIES).any()
    tested = importance["p"].dropna()
    assert len(tested) > 300
    # About 5 % are below 0.05 by chance; ASVs of one sample depend on each other.
    assert (tested < 0.05).mean() < 0.12
