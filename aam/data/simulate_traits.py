"""What a synthetic study is about: its settings, ASVs with tree, sequences and traits, and samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.config import option
from aam.errors import Problems
from aam.runtime.rng import generator

BIOMES = ("gut", "skin", "mouth", "gill")
SEASONS = ("spring", "summer", "autumn", "winter")
BATCHES = ("batch-1", "batch-2", "batch-3", "batch-4")
FOLDS = 5
PH_RANGE = (4.5, 8.5)
PH_WITHIN_SUBJECT_SD = 0.6

BASES = np.frombuffer(b"ACGT", np.uint8)
# Base composition of the 150 nt after primer 515F in public tables of the V4 region.
BASE_FREQUENCIES = np.array([0.25, 0.18, 0.35, 0.22])
ASVS_PER_CLUSTER = 5
# Heights in substitutions per site: two tips whose common ancestor is this high differ by twice as much.
CLUSTER_HEIGHT = (0.004, 0.03)
DEEPEST = 0.18
BRANCH_RATE_SD = 0.25

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SimulateSettings:
    """A synthetic study"""

    output_dir: Path = option(
        Path("study"), "Folder to write: table.biom, tree.nwk, metadata.tsv, traits.tsv, truth.json."
    )
    samples: int = option(300, "Number of samples.")
    asvs: int | None = option(None, "Number of ASVs; unset: 1,000 at 300 samples, growing with their root.")
    subjects: int | None = option(None, "Number of subjects; unset: one for five samples.")
    length: int = option(150, "Nucleotides of each ASV.")
    depth: int = option(8_000, "Median reads of a sample.")
    asv_turnover: float = option(
        0.0, "Share of the ASVs that occur in one fold only, so that held-out samples hold relatives instead."
    )
    seed: int = option(0, "Seed of everything that is drawn.")
    overwrite: bool = option(False, "Replace the output folder if it exists.")

    @property
    def number_of_asvs(self) -> int:
        """ASVs of the study."""
        return self.asvs if self.asvs is not None else max(50, round(1_000 * (self.samples / 300) ** 0.5))

    @property
    def number_of_subjects(self) -> int:
        """Subjects of the study."""
        return self.subjects if self.subjects is not None else max(FOLDS, self.samples // 5)


def check_settings(settings: SimulateSettings) -> None:
    """Refuse settings that no study can have.

    Raises
    ------
    InputError
        With every option that is out of range.
    """
    problems = Problems()

    def require(good: bool, name: str, value: object, expected: str) -> None:
        if not good:
            problems.add(f"--{name}: {value} found, expected {expected}")

    require(settings.samples >= 20, "samples", settings.samples, "at least 20")
    subjects, most = settings.number_of_subjects, settings.samples
    require(FOLDS <= subjects <= most, "subjects", subjects, f"{FOLDS} to the number of samples, {most}")
    require(settings.number_of_asvs >= 50, "asvs", settings.number_of_asvs, "at least 50")
    require(settings.length >= 50, "length", settings.length, "at least 50 nucleotides")
    require(settings.depth >= 100, "depth", settings.depth, "at least 100 reads")
    require(0 <= settings.asv_turnover <= 1, "asv-turnover", settings.asv_turnover, "0 to 1")
    problems.raise_if_any()


@dataclass(frozen=True)
class Tree:
    """A rooted binary tree in post-order: tips first, the root last, children before parents.

    Attributes
    ----------
    parent : int64 [nodes]
        Parent of each node; the root is its own.
    length : float64 [nodes]
        Length of the branch above each node, in substitutions per site.
    tips : int
        Number of tips; the tips of a cluster are neighbours.
    """

    parent: Ints
    length: Floats
    tips: int

    def newick(self, names: list[str]) -> str:
        """The tree as Newick text, tips called by `names`."""
        text = [*names, *[""] * (len(self.parent) - self.tips)]
        for node, above in enumerate(self.parent[:-1]):
            labelled = f"{text[node]}:{self.length[node]:.6f}"
            text[node] = ""
            text[above] = f"({labelled}" if not text[above] else f"{text[above]},{labelled})"
        return f"{text[-1]};\n"


def draw_tree(asvs: int, seed: int) -> Tree:
    """A random tree whose `asvs` tips form clusters of close relatives of uneven size.

    Clusters and the tree above them are joined pair by pair at random, a coalescent with chosen heights
    (Kingman 1982); rates vary between branches, so the tree is not a clock.
    """
    rng = generator(seed, "simulate", "tree")
    clusters = max(2, asvs // ASVS_PER_CLUSTER)
    share = rng.dirichlet(np.full(clusters, 0.7))
    cluster = np.sort(np.concatenate([np.arange(clusters), rng.choice(clusters, asvs - clusters, p=share)]))
    parent = np.arange(2 * asvs - 1)
    height = np.zeros(2 * asvs - 1)
    new = asvs

    def join(nodes: list[int], heights: Floats) -> int:
        nonlocal new
        for each in heights:
            for _ in range(2):
                pick = int(rng.integers(len(nodes)))
                nodes[pick], nodes[-1] = nodes[-1], nodes[pick]
                parent[nodes.pop()] = new
            height[new] = each
            nodes.append(new)
            new += 1
        return nodes[0]

    roots = []
    for members in np.split(np.arange(asvs), np.flatnonzero(np.diff(cluster)) + 1):
        top = np.exp(rng.uniform(*np.log(CLUSTER_HEIGHT)))
        roots.append(join(members.tolist(), top * np.sort(rng.uniform(0.2, 1, len(members) - 1))))
    join(roots, CLUSTER_HEIGHT[1] + (DEEPEST - CLUSTER_HEIGHT[1]) * np.sort(rng.beta(2, 1.5, clusters - 1)))
    length = (height[parent] - height) * rng.lognormal(0, BRANCH_RATE_SD, len(parent))
    return Tree(parent, length, asvs)


def position_rates(length: int, rng: np.random.Generator) -> Floats:
    """Relative rate of each position, mean 1: conserved and variable stretches by turns, gamma within."""
    rates = np.empty(length)
    start, variable = 0, False
    while start < length:
        stop = start + int(rng.integers(8, 24))
        rates[start:stop] = 1.0 if variable else 0.1
        start, variable = stop, not variable
    rates *= rng.gamma(1.0, size=length)
    scaled: Floats = rates / rates.mean()
    return scaled


def evolve_sequences(tree: Tree, length: int, seed: int) -> list[str]:
    """Sequences of the tips, all distinct, in the order of the tips.

    Positions change independently at their own rate under the model of Felsenstein (1981). Where two
    tips would be equal, a variable position of the later one is changed.
    """
    rng = generator(seed, "simulate", "sequences")
    rates = position_rates(length, rng)
    scaled = rates / (1 - np.sum(BASE_FREQUENCIES**2))
    sequence = np.empty((len(tree.parent), length), np.uint8)
    sequence[-1] = rng.choice(4, length, p=BASE_FREQUENCIES)
    for node in range(len(tree.parent) - 2, -1, -1):
        changes = np.flatnonzero(rng.random(length) < -np.expm1(-scaled * tree.length[node]))
        sequence[node] = sequence[tree.parent[node]]
        sequence[node, changes] = rng.choice(4, len(changes), p=BASE_FREQUENCIES)
    seen: set[bytes] = set()
    for tip in sequence[: tree.tips]:
        while tip.tobytes() in seen:
            place = rng.choice(length, p=rates / length)
            tip[place] = (tip[place] + rng.integers(1, 4)) % 4
        seen.add(tip.tobytes())
    return [BASES[tip].tobytes().decode("ascii") for tip in sequence[: tree.tips]]


def evolve_traits(tree: Tree, traits: int, seed: int) -> Floats:
    """Traits ``[tips, traits]`` with mean 0 and sd 1: Brownian motion along the tree (Felsenstein 1985)."""
    rng = generator(seed, "simulate", "traits")
    value = np.zeros((len(tree.parent), traits))
    step = rng.standard_normal(value.shape) * np.sqrt(tree.length)[:, None]
    for node in range(len(tree.parent) - 2, -1, -1):
        value[node] = value[tree.parent[node]] + step[node]
    tips = value[: tree.tips]
    standard: Floats = (tips - tips.mean(0)) / tips.std(0)
    return standard


@dataclass(frozen=True)
class Design:
    """What is known of the samples, an array ``[samples]`` each; samples of a subject are neighbours."""

    subject: Ints
    fold: Ints
    ph: Floats
    biome: Ints
    season: Ints
    batch: Ints
    case: Ints
    null: Floats

    def columns(self) -> dict[str, list[str]]:
        """The metadata columns as text."""
        return {
            "ph": [f"{value:.2f}" for value in self.ph],
            "biome": [BIOMES[code] for code in self.biome],
            "season": [SEASONS[code] for code in self.season],
            "subject": [f"subject-{code + 1}" for code in self.subject],
            "batch": [BATCHES[code] for code in self.batch],
            "depth_confounded": [("control", "case")[code] for code in self.case],
            "null": [f"{value:.3f}" for value in self.null],
            "fold": [str(code) for code in self.fold],
        }


def draw_design(samples: int, subjects: int, seed: int) -> Design:
    """Draw the metadata; `fold`, `batch` and the usual `ph` belong to the subject, the rest to the sample."""
    rng = generator(seed, "simulate", "design")
    subject = np.sort(np.concatenate([np.arange(subjects), rng.integers(0, subjects, samples - subjects)]))
    size = np.bincount(subject)
    fold, filled = np.zeros(subjects, np.int64), np.zeros(FOLDS, np.int64)
    for each in np.argsort(-size, kind="stable"):
        fold[each] = np.argmin(filled)
        filled[fold[each]] += size[each]

    def balanced(number: int, classes: int) -> Ints:
        return rng.permutation(np.arange(number) % classes)

    usual = rng.uniform(*PH_RANGE, subjects)[subject]
    return Design(
        subject=subject,
        fold=fold[subject],
        ph=(usual + PH_WITHIN_SUBJECT_SD * rng.standard_normal(samples)).round(2),
        biome=balanced(samples, len(BIOMES)),
        season=balanced(samples, len(SEASONS)),
        batch=balanced(subjects, len(BATCHES))[subject],
        case=balanced(samples, 2),
        null=rng.standard_normal(samples).round(3),
    )
