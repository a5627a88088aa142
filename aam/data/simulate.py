"""A synthetic 16S study whose truth is known: communities that follow samples through the ASVs' traits."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from aam.data.biom import BiomWriter
from aam.data.simulate_traits import (
    BATCHES,
    BIOMES,
    FOLDS,
    PH_RANGE,
    SEASONS,
    Design,
    Floats,
    Ints,
    SimulateSettings,
    Tree,
    check_settings,
    draw_design,
    draw_tree,
    evolve_sequences,
    evolve_traits,
)
from aam.errors import InputError
from aam.runtime.files import check_writable, whole_folder
from aam.runtime.rng import generator

__all__ = [
    "SimulateSettings",
    "SimulationSummary",
    "Study",
    "communities",
    "draw_study",
    "simulate",
    "write_study",
]

SAMPLES_AT_ONCE = 512

# An ASV enters a subject's pool with its own prevalence, and a sample of that subject with PRESENT.
POOL = 180
PRESENT = 0.6
PREVALENCE_SD = 2.5
# Besides, each ASV visits one sample, so that none is missing from the table and many are seen once.
VISITOR_SHARE = 0.002
# What moves the natural logarithm of an ASV's share; BIOME, SEASON and BATCH for each sd of its trait.
ABUNDANCE_SD = 1.0
ABUNDANCE_PER_PREVALENCE = 0.3
NICHE_WIDTH = 1.3
BIOME_EFFECT = 0.7
SEASON_EFFECT = 0.4
BATCH_EFFECT = 0.6
SUBJECT_SD = 0.7
SAMPLE_SD = 0.8
# Total of the Dirichlet parameters: the smaller, the more counts scatter beyond a multinomial draw.
CONCENTRATION = 150.0
DEPTH_SD = 0.4
# Cases are sequenced this many times less deeply than controls.
CASE_DEPTH_RATIO = 3.0

ORACLE_DEPTH = 1_000
ORACLE_SAMPLES = 2_000


@dataclass(frozen=True)
class Study:
    """Everything that is drawn but the counts, which `communities` draws when asked.

    Attributes
    ----------
    sequences : list of str
        The ASVs, in the order of the tree's tips.
    traits : float64 [ASVs, 13]
        Acidity preference, then one affinity for each biome, season and batch.
    prevalence, abundance : float64 [ASVs]
        Logarithms of how readily an ASV enters a subject's pool and of its share in communities.
    home : int64 [ASVs]
        The only fold in which an ASV occurs, -1 for all.
    visited : int64 [ASVs]
        The sample in which an ASV is found by chance, whatever its pool.
    """

    settings: SimulateSettings
    tree: Tree
    sequences: list[str]
    traits: Floats
    prevalence: Floats
    abundance: Floats
    home: Ints
    visited: Ints
    design: Design

    @property
    def sample_ids(self) -> list[str]:
        """Ids of the samples, by number."""
        width = len(str(self.settings.samples))
        return [f"sample-{number:0{width}d}" for number in range(1, self.settings.samples + 1)]


@dataclass(frozen=True)
class SimulationSummary:
    """What was written and what can be known of it.

    Attributes
    ----------
    density : float
        Share of the counts that are not zero.
    median_depth : float
        Reads of a sample.
    median_richness : float or None
        ASVs of a sample at 1,000 reads; none where no sample is as deep.
    seen_in_one_sample : float
        Share of the ASVs that are found in one sample only.
    ph_r2, biome_accuracy : float or None
        What an oracle that knows every ASV's traits reaches on folds of subjects it was not fitted on;
        none where too few samples are deep enough.
    biome_chance : float
        Accuracy of naming the most frequent biome. Chance of R2 is 0.
    """

    samples: int
    asvs: int
    subjects: int
    density: float
    median_depth: float
    median_richness: float | None
    seen_in_one_sample: float
    ph_r2: float | None
    biome_accuracy: float | None
    biome_chance: float

    def __str__(self) -> str:
        def shown(value: float | None, digits: int) -> str:
            return "unknown" if value is None else f"{value:.{digits}f}"

        return (
            f"{self.samples:,} samples of {self.subjects:,} subjects, {self.asvs:,} ASVs, median depth "
            f"{self.median_depth:,.0f}, {self.density:.1%} of the counts not zero\n"
            f"At {ORACLE_DEPTH:,} reads: {shown(self.median_richness, 0)} ASVs in a sample (median)\n"
            "An oracle that knows the ASVs' traits reaches, on subjects it has not seen:\n"
            f"  ph     R2 {shown(self.ph_r2, 3)} (chance 0)\n"
            f"  biome  accuracy {shown(self.biome_accuracy, 3)} (chance {self.biome_chance:.3f})"
        )


def draw_study(settings: SimulateSettings) -> Study:
    """Draw tree, sequences, traits and metadata of a study.

    Raises
    ------
    InputError
        Settings are out of range.
    """
    check_settings(settings)
    asvs, seed = settings.number_of_asvs, settings.seed
    tree, design = draw_tree(asvs, seed), draw_design(settings.samples, settings.number_of_subjects, seed)
    rng = generator(seed, "simulate", "asvs")
    prevalence = PREVALENCE_SD * rng.standard_normal(asvs)
    abundance = ABUNDANCE_SD * rng.standard_normal(asvs) + ABUNDANCE_PER_PREVALENCE * prevalence
    # Neighbouring tips get different folds, so that every fold holds relatives from every clade.
    home = np.where(rng.random(asvs) < settings.asv_turnover, np.arange(asvs) % FOLDS, -1)
    visited = rng.integers(0, settings.samples, asvs)
    for fold in range(FOLDS):
        visited[home == fold] = rng.choice(np.flatnonzero(design.fold == fold), int((home == fold).sum()))
    return Study(
        settings=settings,
        tree=tree,
        sequences=evolve_sequences(tree, settings.length, seed),
        traits=evolve_traits(tree, 1 + len(BIOMES) + len(SEASONS) + len(BATCHES), seed),
        prevalence=prevalence,
        abundance=abundance,
        home=home,
        visited=visited,
        design=design,
    )


def _subject_pool(study: Study, fold: int, rng: np.random.Generator) -> Ints:
    """The ASVs that a subject can hold, drawn without replacement by prevalence."""
    allowed = (study.home < 0) | (study.home == fold)
    key = np.where(allowed, study.prevalence + rng.gumbel(size=len(allowed)), -np.inf)
    size = min(POOL, int(allowed.sum()))
    return np.sort(np.argpartition(-key, size - 1)[:size])


def _subject_counts(study: Study, subject: int, samples: Ints) -> list[tuple[Ints, Ints]]:
    """ASVs and reads of each sample of a subject, from the subject's own stream of random numbers."""
    rng = generator(study.settings.seed, "simulate", "subject", subject)
    design = study.design
    pool = _subject_pool(study, int(design.fold[samples[0]]), rng)
    traits = study.traits[pool]
    optimum = np.mean(PH_RANGE) + traits[:, 0]
    biome, season, batch = np.split(traits[:, 1:], [len(BIOMES), len(BIOMES) + len(SEASONS)], axis=1)
    usual = study.abundance[pool] + SUBJECT_SD * rng.standard_normal(len(pool))
    drawn = []
    for sample in samples:
        log_share = (
            usual
            - 0.5 * ((design.ph[sample] - optimum) / NICHE_WIDTH) ** 2
            + BIOME_EFFECT * biome[:, design.biome[sample]]
            + SEASON_EFFECT * season[:, design.season[sample]]
            + BATCH_EFFECT * batch[:, design.batch[sample]]
            + SAMPLE_SD * rng.standard_normal(len(pool))
        )
        present = rng.random(len(pool)) < PRESENT
        present[np.argmax(log_share)] = True
        share = np.exp(log_share - log_share.max()) * present
        share = rng.gamma(CONCENTRATION * share / share.sum())
        median = study.settings.depth * CASE_DEPTH_RATIO ** (0.5 - design.case[sample])
        depth = max(1, round(median * rng.lognormal(0, DEPTH_SD)))
        reads = rng.multinomial(depth, share / share.sum())
        visitors = np.flatnonzero(study.visited == sample)
        visits = 1 + rng.poisson(depth * VISITOR_SHARE * rng.lognormal(size=len(visitors)))
        drawn.append((np.concatenate([pool, visitors]), np.concatenate([reads, visits])))
    return drawn


def communities(study: Study, samples_at_once: int = SAMPLES_AT_ONCE) -> Iterator[sparse.csr_matrix]:
    """Draw the counts ``[samples, ASVs]`` in order, some subjects at a time; the cuts change no count."""
    edges = np.flatnonzero(np.diff(study.design.subject, prepend=-1, append=-1))
    waiting: list[tuple[Ints, Ints]] = []
    for subject, (start, stop) in enumerate(itertools.pairwise(edges)):
        waiting += _subject_counts(study, subject, np.arange(start, stop))
        if len(waiting) >= samples_at_once or stop == study.settings.samples:
            columns, reads = zip(*waiting, strict=True)
            ends = np.cumsum([0, *map(len, columns)])
            shape = (len(waiting), len(study.sequences))
            counts = sparse.csr_matrix((np.concatenate(reads), np.concatenate(columns), ends), shape=shape)
            counts.sum_duplicates()
            counts.eliminate_zeros()
            yield counts
            waiting = []


class _Oracle:
    """Knows every ASV's traits; collects what they say of each sample, then predicts unseen subjects."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.seen = 0
        self.used: list[int] = []
        self.rows: list[Floats] = []
        self.richness: list[int] = []

    def look(self, counts: sparse.csr_matrix) -> None:
        """Rarefy samples and average the traits of their ASVs by reads, by log reads and by presence."""
        for row in range(counts.shape[0]):
            sample, self.seen = self.seen, self.seen + 1
            reads = counts.data[counts.indptr[row] : counts.indptr[row + 1]]
            if len(self.rows) >= ORACLE_SAMPLES or reads.sum() < ORACLE_DEPTH:
                continue
            rng = generator(self.study.settings.seed, "simulate", "oracle", sample)
            reads = rng.multivariate_hypergeometric(reads, ORACLE_DEPTH)
            traits = self.study.traits[counts.indices[counts.indptr[row] : counts.indptr[row + 1]]]
            weights = np.stack([reads, np.log1p(reads), reads > 0]).astype(np.float64)
            weights /= weights.sum(1, keepdims=True)
            self.rows.append((weights @ traits).ravel())
            self.used.append(sample)
            self.richness.append(int((reads > 0).sum()))

    def predict(self) -> tuple[float, float] | None:
        """R2 of `ph` and accuracy of `biome`, pooled over the folds; none where too few samples are deep."""
        design, used = self.study.design, np.array(self.used, np.int64)
        fold, ph, biome = design.fold[used], design.ph[used], design.biome[used]
        if np.bincount(fold, minlength=FOLDS).min() < 2:
            return None
        features = np.stack(self.rows)
        guess, named = np.zeros_like(ph), np.zeros_like(biome)
        for held_out in range(FOLDS):
            test = fold == held_out
            ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-1, 3, 9)))
            guess[test] = ridge.fit(features[~test], ph[~test]).predict(features[test])
            logistic = make_pipeline(StandardScaler(), LogisticRegression(C=0.3, max_iter=2_000))
            named[test] = logistic.fit(features[~test], biome[~test]).predict(features[test])
        return float(r2_score(ph, guess)), float(accuracy_score(biome, named))


def _tsv(rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(map("\t".join, rows)) + "\n"


def _metadata(study: Study) -> str:
    columns = {"sample-id": study.sample_ids, **study.design.columns()}
    return _tsv([columns, *zip(*columns.values(), strict=True)])


def _trait_table(study: Study) -> str:
    names = ["feature-id", "ph", *(f"affinity-{name}" for name in (*BIOMES, *SEASONS, *BATCHES))]
    rows = [names]
    for sequence, traits in zip(study.sequences, study.traits, strict=True):
        rows.append([sequence, *(f"{value:.5f}" for value in traits)])
    return _tsv(rows)


def write_study(study: Study, folder: Path) -> SimulationSummary:
    """Write table.biom, tree.nwk, metadata.tsv, traits.tsv and truth.json into a folder that exists.

    The counts are drawn and written `SAMPLES_AT_ONCE` samples at a time.
    """
    oracle, ids = _Oracle(study), study.sample_ids
    depths: list[int] = []
    found = np.zeros(len(study.sequences), np.int64)
    with BiomWriter(folder / "table.biom", study.sequences) as writer:
        for counts in communities(study):
            writer.append(counts, ids[len(depths) : len(depths) + counts.shape[0]])
            oracle.look(counts)
            found += np.bincount(counts.indices, minlength=len(found))
            depths += counts.sum(1).A1.tolist()
    reached = oracle.predict()
    summary = SimulationSummary(
        samples=len(depths),
        asvs=len(found),
        subjects=study.settings.number_of_subjects,
        density=float(found.sum() / (len(found) * len(depths))),
        median_depth=float(np.median(depths)),
        median_richness=float(np.median(oracle.richness)) if oracle.richness else None,
        seen_in_one_sample=float((found == 1).mean()),
        ph_r2=reached[0] if reached else None,
        biome_accuracy=reached[1] if reached else None,
        biome_chance=float(np.bincount(study.design.biome).max() / len(depths)),
    )
    settings = {
        name: value
        for name, value in dataclasses.asdict(study.settings).items()
        if name not in ("output_dir", "overwrite")
    }
    truth = {"settings": settings, "oracle_depth": ORACLE_DEPTH, **dataclasses.asdict(summary)}
    texts = {
        "tree.nwk": study.tree.newick(study.sequences),
        "metadata.tsv": _metadata(study),
        "traits.tsv": _trait_table(study),
        "truth.json": json.dumps(truth, indent=2, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return summary


def simulate(settings: SimulateSettings) -> SimulationSummary:
    """Draw a study and write it to `settings.output_dir`, whole or not at all.

    Equal settings give equal bytes.

    Raises
    ------
    InputError
        Settings are out of range, or the folder exists and may not be replaced. Only a folder that an
        earlier simulation wrote is ever replaced.
    """
    output = settings.output_dir
    check_settings(settings)
    check_writable(output, settings.overwrite)
    if output.exists() and not (output / "truth.json").exists():
        raise InputError(
            f"{output}: not a simulated study (no truth.json), which --overwrite spares; choose another"
        )
    with whole_folder(output) as folder:
        return write_study(draw_study(settings), folder)
