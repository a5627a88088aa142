"""A synthetic 16S study whose truth is known: communities that follow samples through the ASVs'
traits.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from aam.config_commands import SimulateConfig
from aam.data.rarefaction import matrix_of
from aam.device.rng import generator
from aam.errors import InputError
from aam.files.output_folder import RUN, OutputFolder
from aam.io.biom import write_hdf5

BIOMES = ("gut", "skin", "mouth", "gill")
SEASONS = ("spring", "summer", "autumn", "winter")
BATCHES = ("batch-1", "batch-2", "batch-3", "batch-4")
CODED = {
    "biome": BIOMES,
    "season": SEASONS,
    "batch": BATCHES,
    "depth_confounded": ("control", "case"),
}
FOLDS = 5
PH_RANGE = (4.5, 8.5)
PH_WITHIN_SUBJECT_SD = 0.6
OUTPUTS = (RUN, "table.biom", "metadata.tsv", "traits.tsv", "tree.nwk", "truth.json")
# With more ASVs than these a pool is sampled ASV by ASV: noise for every ASV took 0.1 s a subject.
MOST_WITH_NOISE = 1 << 19
ORACLE_DEPTH = 1_000
ORACLE_SAMPLES = 2_000

# An ASV enters a subject's pool with its own prevalence, and a sample of that subject with PRESENT.
# Besides, each ASV visits one sample, so that none is missing from the table and many are seen
# once.
POOL = 180
PRESENT = 0.6
PREVALENCE_SD = 2.5
VISITOR_SHARE = 0.002
# What moves the natural logarithm of an ASV's share; BIOME, SEASON and BATCH for each sd of its
# trait.
ABUNDANCE_SD = 1.0
ABUNDANCE_PER_PREVALENCE = 0.3
SUBJECT_SD = 0.7
SAMPLE_SD = 0.8
NICHE_WIDTH = 1.3
BIOME_EFFECT = 0.7
SEASON_EFFECT = 0.4
BATCH_EFFECT = 0.6
# Total of the Dirichlet parameters: the smaller, the more counts scatter beyond a multinomial
# sample. Cases are sequenced CASE_DEPTH_RATIO times less deeply than controls.
CONCENTRATION = 150.0
DEPTH_SD = 0.4
CASE_DEPTH_RATIO = 3.0

Design = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class SimulatedStudy:
    """ASVs in the order of tips, and `design`, the metadata columns with classes as numbers; the
    counts come later.

    `traits` [ASVs, 13]: acidity preference, affinity for each biome, season and batch; `prevalence`
    and `abundance`: logarithms; `home`: the only fold of an ASV (-1: all); `visited`: a sample with
    it.
    """

    settings: SimulateConfig
    tree: Tree
    sequences: list[str]
    traits: Floats
    prevalence: Floats
    abundance: Floats
    home: Ints
    visited: Ints
    design: Design

    @functools.cached_property
    def visitors(self) -> tuple[Ints, Ints]:
        """Return all ASVs by the sample that each visits, and where those of each sample begin."""
        samples = np.arange(self.settings.samples + 1)
        order = np.argsort(self.visited, kind="stable")
        return order, np.searchsorted(self.visited[order], samples)

    @functools.cached_property
    def shares(self) -> Floats:
        """Return the running sum of the ASVs' shares of a pool, the last 1."""
        sums = np.cumsum(np.exp(self.prevalence))
        return np.asarray(sums / sums[-1])


def random_design(samples: int, subjects: int, seed: int) -> Design:
    """Sample the metadata; `fold`, `batch` and the usual `ph` belong to the subject, the rest to
    the sample.
    """
    rng = generator(seed, "simulate", "design")
    subject = np.sort(
        np.concatenate([np.arange(subjects), rng.integers(0, subjects, samples - subjects)])
    )
    size, fold, filled = (
        np.bincount(subject),
        np.zeros(subjects, np.int64),
        np.zeros(FOLDS, np.int64),
    )
    for largest in np.argsort(-size, kind="stable"):
        fold[largest] = np.argmin(filled)
        filled[fold[largest]] += size[largest]

    def balanced(number: int, classes: int) -> Ints:
        return rng.permutation(np.arange(number) % classes)

    ph = rng.uniform(*PH_RANGE, subjects)[subject] + PH_WITHIN_SUBJECT_SD * rng.standard_normal(
        samples
    )
    return {
        "ph": ph.round(2),
        "biome": balanced(samples, len(BIOMES)),
        "season": balanced(samples, len(SEASONS)),
        "subject": subject,
        "batch": balanced(subjects, len(BATCHES))[subject],
        "depth_confounded": balanced(samples, 2),
        "null": rng.standard_normal(samples).round(3),
        "fold": fold[subject],
    }


def sample_ids(samples: int) -> list[str]:
    """Return the names of so many samples, in order."""
    return [f"sample-{number:0{len(str(samples))}d}" for number in range(1, samples + 1)]


def _checked(settings: SimulateConfig) -> SimulateConfig:
    """Return the settings with their derived sizes; `InputError` names every option that is out of
    range.
    """
    samples = settings.samples
    asvs = (
        max(50, round(1_000 * (max(samples, 0) / 300) ** 0.5))
        if settings.asvs is None
        else settings.asvs
    )
    subjects = max(FOLDS, samples // 5) if settings.subjects is None else settings.subjects
    checks = (
        (samples >= 20, "samples", samples, "at least 20"),
        (
            FOLDS <= subjects <= samples,
            "subjects",
            subjects,
            f"{FOLDS} to the number of samples, {samples}",
        ),
        (asvs >= 50, "asvs", asvs, "at least 50"),
        (settings.length >= 50, "length", settings.length, "at least 50 nucleotides"),
        (settings.depth >= 100, "depth", settings.depth, "at least 100 reads"),
        (0 <= settings.asv_turnover <= 1, "asv-turnover", settings.asv_turnover, "0 to 1"),
    )
    if bad := [
        f"--{name}: {value} found, expected {what}"
        for good, name, value, what in checks
        if not good
    ]:
        raise InputError(*bad)
    return replace(settings, asvs=asvs, subjects=subjects)


def random_study(settings: SimulateConfig) -> SimulatedStudy:
    """Sample tree, sequences, traits and metadata; `InputError` for settings out of range."""
    settings = _checked(settings)
    asvs, seed = settings.asvs or 0, settings.seed
    tree, design = (
        random_tree(asvs, seed),
        random_design(settings.samples, settings.subjects or 0, seed),
    )
    rng = generator(seed, "simulate", "asvs")
    prevalence = PREVALENCE_SD * rng.standard_normal(asvs)
    abundance = ABUNDANCE_SD * rng.standard_normal(asvs) + ABUNDANCE_PER_PREVALENCE * prevalence
    # Neighbouring tips get different folds, so that every fold holds relatives from every clade.
    home = np.where(rng.random(asvs) < settings.asv_turnover, np.arange(asvs) % FOLDS, -1)
    visited = rng.integers(0, settings.samples, asvs)
    for fold in range(FOLDS):
        visited[home == fold] = rng.choice(
            np.flatnonzero(design["fold"] == fold), int((home == fold).sum())
        )
    sequences = evolve_sequences(tree, settings.length, seed)
    traits = evolve_traits(tree, 1 + len(BIOMES + SEASONS + BATCHES), seed)
    return SimulatedStudy(
        settings, tree, sequences, traits, prevalence, abundance, home, visited, design
    )


def _pool(study: SimulatedStudy, fold: int, rng: np.random.Generator) -> Ints:
    """Return a subject's pool, ascending: ASVs of a fold, sampled without replacement by
    prevalence.
    """
    if len(study.home) <= MOST_WITH_NOISE:
        # Gumbel noise samples without replacement.
        allowed = (study.home < 0) | (study.home == fold)
        key = np.where(allowed, study.prevalence + rng.gumbel(size=len(allowed)), -np.inf)
        size = min(POOL, int(allowed.sum()))
        return np.sort(np.argpartition(-key, size - 1)[:size])
    # Single ASVs of which repeats are passed over have the same distribution.
    pool = np.zeros(0, np.int64)
    while len(pool) < POOL:
        sampled = np.searchsorted(study.shares, rng.random(2 * POOL))
        sampled = sampled[(study.home[sampled] < 0) | (study.home[sampled] == fold)]
        joined = np.concatenate([pool, sampled])
        pool = joined[np.sort(np.unique(joined, return_index=True)[1])][:POOL]
    return np.sort(pool)


def _subject_counts(study: SimulatedStudy, subject: int, samples: Ints) -> list[tuple[Ints, Ints]]:
    """Return ASVs and reads of each sample of a subject, from the subject's own stream of random
    numbers.
    """
    rng = generator(study.settings.seed, "simulate", "subject", subject)
    pool = _pool(study, study.design["fold"][samples[0]], rng)
    size, (visitors, begins) = len(pool), study.visitors
    optimum = np.mean(PH_RANGE) + study.traits[pool, 0]
    biome, season, batch = np.split(
        study.traits[pool, 1:], [len(BIOMES), len(BIOMES + SEASONS)], axis=1
    )
    usual = study.abundance[pool] + SUBJECT_SD * rng.standard_normal(size)
    counts = []
    for sample in samples.tolist():
        row = {name: values[sample].item() for name, values in study.design.items()}
        log_share = (
            usual
            - 0.5 * ((row["ph"] - optimum) / NICHE_WIDTH) ** 2
            + BIOME_EFFECT * biome[:, row["biome"]]
            + SEASON_EFFECT * season[:, row["season"]]
            + BATCH_EFFECT * batch[:, row["batch"]]
            + SAMPLE_SD * rng.standard_normal(size)
        )
        present = rng.random(size) < PRESENT
        present[np.argmax(log_share)] = True
        share = np.exp(log_share - log_share.max()) * present
        share = rng.gamma(CONCENTRATION * share / share.sum())
        median = study.settings.depth * CASE_DEPTH_RATIO ** (0.5 - row["depth_confounded"])
        depth = max(1, round(median * rng.lognormal(0, DEPTH_SD)))
        reads = rng.multinomial(depth, share / share.sum())
        visiting = visitors[begins[sample] : begins[sample + 1]]
        visits = 1 + rng.poisson(depth * VISITOR_SHARE * rng.lognormal(size=len(visiting)))
        counts.append((np.concatenate([pool, visiting]), np.concatenate([reads, visits])))
    return counts


def communities(study: SimulatedStudy) -> Iterator[sparse.csr_matrix]:
    """Sample the counts [samples, ASVs] of one subject after the other, in order."""
    edges = np.flatnonzero(np.diff(study.design["subject"], prepend=-1, append=-1))
    for subject, (start, stop) in enumerate(itertools.pairwise(edges)):
        counts = matrix_of(
            _subject_counts(study, subject, np.arange(start, stop)), len(study.sequences)
        )
        counts.sum_duplicates()
        counts.eliminate_zeros()
        yield counts


def _oracle(study: SimulatedStudy, looks: dict[int, Floats]) -> dict[str, float | None]:
    """Return R2 of `ph` and accuracy of `biome`, pooled over the folds; none where too few samples
    are deep.
    """
    used = {name: values[list(looks)] for name, values in study.design.items()}
    features = np.array(list(looks.values()))
    if np.bincount(used["fold"], minlength=FOLDS).min() < 2:
        return {"ph_r2": None, "biome_accuracy": None}
    models = {
        "ph": RidgeCV(np.logspace(-1, 3, 9)),
        "biome": LogisticRegression(C=0.3, max_iter=2_000),
    }
    scaled = (
        (used[name], make_pipeline(StandardScaler(), model)) for name, model in models.items()
    )
    ph, biome = (
        cross_val_predict(m, features, y, cv=PredefinedSplit(used["fold"])) for y, m in scaled
    )
    return {
        "ph_r2": r2_score(used["ph"], ph),
        "biome_accuracy": float(accuracy_score(used["biome"], biome)),
    }


def _write_tsv(path: Path, header: list[str], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _write_texts(study: SimulatedStudy, folder: Path, truth: dict[str, Any]) -> None:
    texts = {name: np.array(labels)[study.design[name]] for name, labels in CODED.items()}
    texts["subject"] = np.array([f"subject-{code + 1}" for code in study.design["subject"]])
    columns = {"sample-id": sample_ids(study.settings.samples)}
    columns |= {name: texts.get(name, values).tolist() for name, values in study.design.items()}
    _write_tsv(folder / "metadata.tsv", list(columns), zip(*columns.values(), strict=True))
    names = ["ph", *(f"affinity-{name}" for name in BIOMES + SEASONS + BATCHES)]
    traits = (
        [name, *(f"{x:.5f}" for x in row)]
        for name, row in zip(study.sequences, study.traits, strict=True)
    )
    _write_tsv(folder / "traits.tsv", ["feature-id", *names], traits)
    with (folder / "tree.nwk").open("w", encoding="utf-8") as file:
        file.writelines(study.tree.newick(study.sequences))
    (folder / "truth.json").write_text(
        json.dumps(truth, indent=2, allow_nan=False) + "\n", encoding="utf-8"
    )


def _look(study: SimulatedStudy, sample: int, reads: Ints, columns: Ints) -> tuple[int, Floats]:
    """Return a rarefied sample's richness and its ASVs' mean traits, weighted by reads, log reads
    and presence.
    """
    rng = generator(study.settings.seed, "simulate", "oracle", sample)
    rarefied = rng.multivariate_hypergeometric(reads, ORACLE_DEPTH)
    weights = np.stack([rarefied, np.log1p(rarefied), rarefied > 0])
    means = (weights @ study.traits[columns]) / weights.sum(1, keepdims=True)
    return int((rarefied > 0).sum()), means.ravel()


def write_study(study: SimulatedStudy, folder: Path) -> dict[str, Any]:
    """Write table.biom, tree.nwk, metadata.tsv, traits.tsv and truth.json into a folder that
    exists.

    Returns the truth: what was written, and what an oracle that knows the traits reaches at 1,000
    reads on folds of unseen subjects.
    """
    settings = asdict(study.settings)
    looks = dict[int, Floats]()
    depths, richness = list[int](), list[int]()
    prevalence = np.zeros(len(study.sequences), np.int64)

    def seen() -> Iterator[sparse.csr_matrix]:
        for counts in communities(study):
            np.add.at(prevalence, counts.indices, 1)
            for start, stop in itertools.pairwise(counts.indptr):
                reads, columns = counts.data[start:stop], counts.indices[start:stop]
                depths.append(int(reads.sum()))
                if depths[-1] >= ORACLE_DEPTH and len(looks) < ORACLE_SAMPLES:
                    present, looks[len(depths) - 1] = _look(study, len(depths) - 1, reads, columns)
                    richness.append(present)
            yield counts

    write_hdf5(folder / "table.biom", seen(), sample_ids(settings["samples"]), study.sequences)
    truth = {name: settings[name] for name in ("samples", "asvs", "subjects")} | {
        "density": float(prevalence.sum() / (len(prevalence) * len(depths))),
        "median_depth": float(np.median(depths)),
        "median_richness": float(np.median(richness)) if richness else None,
        "seen_in_one_sample": float((prevalence == 1).mean()),
        **_oracle(study, looks),
        "biome_chance": float(np.bincount(study.design["biome"]).max() / len(depths)),
        "oracle_depth": ORACLE_DEPTH,
        "settings": {
            k: settings[k]
            for k in SimulateConfig.__annotations__
            if k not in ("output_dir", "overwrite")
        },
    }
    _write_texts(study, folder, truth)
    return truth


def simulate(settings: SimulateConfig) -> dict[str, Any]:
    """Simulate a study and write it to `settings.output_dir`, whole or not at all; equal settings,
    equal bytes.

    Returns what truth.json says. Raises `InputError`: settings out of range; a folder that exists,
    unless it is to be overwritten and an earlier simulation wrote it.
    """
    settings = _checked(settings)
    output = OutputFolder(settings.output_dir, "simulate", OUTPUTS, overwrite=settings.overwrite)
    output.check()
    options = {
        name: value
        for name, value in asdict(settings).items()
        if name not in ("output_dir", "overwrite")
    }
    with output.replaced({"config": options}) as folder:
        return write_study(random_study(settings), folder)


# Base composition of the 150 nt after primer 515F in public tables of the V4 region.
BASES = np.frombuffer(b"ACGT", np.uint8)
BASE_FREQUENCIES = np.array([0.25, 0.18, 0.35, 0.22])
# Heights in substitutions per site: two tips whose common ancestor is this high differ by twice as
# much.
ASVS_PER_CLUSTER = 5
CLUSTER_HEIGHT = (0.004, 0.03)
DEEPEST = 0.18
BRANCH_RATE_SD = 0.25

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tree:
    """A rooted binary tree, tips first, children before parents: `parent` and branch `length`
    [nodes].
    """

    parent: Ints
    length: Floats

    def newick(self, names: list[str]) -> Iterator[str]:
        """Yield the tree as Newick text, piece by piece, tips called by `names`."""
        tips, root = len(names), len(self.parent) - 1
        children = np.argsort(self.parent[:-1], kind="stable").reshape(-1, 2).tolist()
        todo: list[int | str] = [root]
        while todo:
            node = todo.pop()
            if isinstance(node, str):
                yield node
                continue
            behind = f":{self.length[node]:.6f}" if node < root else ";\n"
            if node < tips:
                yield names[node] + behind
            else:
                first, second = children[node - tips]
                todo += [f"){behind}", second, ",", first]
                yield "("


def random_tree(asvs: int, seed: int) -> Tree:
    """Return a random tree whose `asvs` tips form clusters of uneven size; rates vary between
    branches.

    Neighbours in a row of tips part at random heights (Popovic 2004), low ones within a cluster.
    """
    rng = generator(seed, "simulate", "tree")
    clusters = max(2, asvs // ASVS_PER_CLUSTER)
    share = rng.dirichlet(np.full(clusters, 0.7))
    cluster = np.sort(
        np.concatenate([np.arange(clusters), rng.choice(clusters, asvs - clusters, p=share)])
    )
    lowest, highest = CLUSTER_HEIGHT
    low = (lowest * (highest / lowest) ** rng.random(clusters))[cluster[1:]] * rng.uniform(
        0.2, 1, asvs - 1
    )
    high = highest + (DEEPEST - highest) * rng.beta(2, 1.5, asvs - 1)
    parted = np.where(np.diff(cluster) == 0, low, high)
    parent, top, other_end = np.arange(2 * asvs - 1), np.arange(asvs), np.arange(asvs)
    # Blocks of neighbours join from low to high; both ends of a block know its top and each other.
    for new, left in enumerate(np.argsort(parted), start=asvs):
        first, last = other_end[[left, left + 1]]
        parent[top[[left, left + 1]]] = new
        top[[first, last]], other_end[first], other_end[last] = new, last, first
    height = np.concatenate([np.zeros(asvs), np.sort(parted)])
    return Tree(parent, (height[parent] - height) * rng.lognormal(0, BRANCH_RATE_SD, len(parent)))


def evolve_sequences(tree: Tree, length: int, seed: int) -> list[str]:
    """Return distinct sequences of the tips: positions change at their own rate (Felsenstein 1981).

    Conserved and variable stretches take turns; the later one of two equal tips is changed.
    """
    rng = generator(seed, "simulate", "sequences")
    rates = np.repeat(np.tile((0.1, 1.0), length), rng.integers(8, 24, 2 * length))[:length]
    rates *= rng.gamma(1.0, size=length)
    rates /= rates.mean()
    scaled = rates / (1 - np.sum(BASE_FREQUENCIES**2))
    sequence = np.empty((len(tree.parent), length), np.uint8)
    sequence[-1] = rng.choice(4, length, p=BASE_FREQUENCIES)
    for node in range(len(tree.parent) - 2, -1, -1):
        changes = np.flatnonzero(rng.random(length) < -np.expm1(-scaled * tree.length[node]))
        sequence[node] = sequence[tree.parent[node]]
        sequence[node, changes] = rng.choice(4, len(changes), p=BASE_FREQUENCIES)
    seen: set[bytes] = set()
    tips = sequence[: len(sequence) // 2 + 1]
    for tip in tips:
        while tip.tobytes() in seen:
            place = rng.choice(length, p=rates / length)
            tip[place] = (tip[place] + rng.integers(1, 4)) % 4
        seen.add(tip.tobytes())
    return [BASES[tip].tobytes().decode("ascii") for tip in tips]


def evolve_traits(tree: Tree, traits: int, seed: int) -> Floats:
    """Return traits [tips, traits] with mean 0 and sd 1: Brownian motion along the tree
    (Felsenstein 1985).
    """
    value = generator(seed, "simulate", "traits").standard_normal((len(tree.parent), traits))
    value *= np.sqrt(tree.length)[:, None]
    for node in range(len(tree.parent) - 2, -1, -1):
        value[node] += value[tree.parent[node]]
    return np.asarray(StandardScaler().fit_transform(value[: len(value) // 2 + 1]))
