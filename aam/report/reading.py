"""How to read each figure and table: what a page links to, and what docs/explanation/reading-the-report.md says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# By the name of a figure or table, or how names begin: what it is called, and what to look for.
READING = {
    # Of a number.
    "predicted": (
        "Predicted against true",
        "Points near the dashed line. A flat cloud is a model that says the mean. Colours that part are batches. "
        "Vertical lines are 90 % intervals",
    ),
    "errors-by-tenth": (
        "Errors along the range",
        "Too high on the left and too low on the right: extremes are pulled to the middle",
    ),
    # Of classes.
    "roc": ("ROC curve", "How many of the class are found at what price in false alarms"),
    "precision-recall": ("Precision and recall", "The same where the class is rare; the dashed line is guessing"),
    "reliability": ("Reliability", "Below the dashed line the model is too sure of itself"),
    "confusion": (
        "True and predicted class",
        "Which classes are taken for each other: per cent of each true class (rows)",
    ),
    # Of both.
    "differences": (
        "Paired differences",
        "The honest comparison: where a bar holds 0, no difference is shown. Each bar has the level of its test, "
        "corrected for all baselines; colours are what the tests say",
    ),
    "new-studies": (
        "In a study never seen",
        "Each study was held out whole. The spread of the studies, more than the interval of their mean, says what a "
        "further one may give",
    ),
    "errors-by-": (
        "Errors by group, by batch",
        "One bad subject or plate makes a bad mean. Groups of fewer than 5 samples are left out",
    ),
    "samples-by-": (
        "The samples",
        "Near samples share their ASVs. Colours that part by target: the ASVs hold it. Errors in one corner: samples "
        "of a kind that the model has seen too little of. Colours that part by batch: beware",
    ),
    "runs-": (
        "Metrics of runs",
        "Intervals that overlap much: the runs may be alike; their paired differences say more",
    ),
    # Of pretraining and training.
    "pcoa-": (
        "PCoA of true and of predicted UniFrac",
        "The predicted picture is turned onto the true one. Colours should lie in the same order",
    ),
    "distances": ("Predicted against true UniFrac", "A narrow cloud along the dashed line"),
    "agreement": (
        "Agreement of distances, Faith PD, taxa and bases",
        "Compare each row with those below it: they need no model, and are what you get for free",
    ),
    "loss": (
        "Loss curves",
        "The same sum for training and validation: of the targets, where there are some. Both fall. Training falls "
        "and validation rises: too many epochs or too few samples; the point is the epoch that was kept",
    ),
    # Of what drives predictions.
    "importance": (
        "Rise of the error when the ASV is permuted",
        "Importance. Bars are corrected for all ASVs that are tested: one that holds 0 does not stand out, and its "
        "place in the order is no finding",
    ),
    "effects": ("Mean effect of the ASV", "What its presence does to the prediction, in its units"),
    "taxa": (
        "Importance by genus",
        "Sums over ASVs; few genera carry more than many single ASVs, and may stand out where no ASV does",
    ),
    "tree": ("Importance on the tree", "Clades whose ASVs speak for the same thing, or for opposite things"),
    "heatmap": ("Effects by sample", "Columns of one colour: the ASV speaks for the same in all samples that have it"),
    "attention": ("Attention", "What the network looks at, which is not importance"),
    # Tables.
    "metrics": (
        "Metrics",
        "Intervals of 95 % resample groups, not samples, because samples of one subject are not independent. Those "
        "of shares (accuracy, AUROC, coverage) are exact binomial ones for the effective number of samples. With few "
        "groups, few of the rarest class, or one group with most samples, they are called rough",
    ),
    "baselines": (
        "The model beside baselines",
        "The metric that decides (MAE, AUROC of two classes, accuracy of more), the paired difference, its p "
        "corrected for all baselines, and the other metrics",
    ),
    "levels": (
        "Metrics by class or column",
        "A level far from the others is where to look first. Few samples vary by chance",
    ),
    "coverage": (
        "Intervals of predictions",
        "Of 90 % intervals, about 90 % hold the truth over all samples of new groups. Nothing promises that for a "
        "tenth of the target, a batch or a class: where the table shows far fewer, do not rely on the intervals",
    ),
    "dropped": ("Samples dropped", "A class that loses more samples than others is judged on what is left of it"),
    "worst": (
        "Worst samples and what they have in common",
        "Open their metadata before you blame the model. “What may be odd” says what is unusual of each: a rare "
        "class or extreme value, nearest samples of another class or range, few reads, few or many ASVs, or no "
        "sample like it",
    ),
}  # fmt: skip


def key_of(name: str) -> str:
    """Return the key of a figure or table in `READING`: its name, or how its name begins; empty where there is none."""
    return max((key for key in READING if name == key or name.startswith(f"{key.rstrip('-')}-")), key=len, default="")


def entries(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return what to look for in figures and tables of these names, each once, in the order of `READING`."""
    keys = {key_of(name) for name in names}
    return {key: text for key, text in READING.items() if key in keys}


def names_in(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the figures and tables of some parts of a page."""
    return [one.name for part in parts for kind in ("hero", "figures", "tables") for one in part.get(kind, ())]
