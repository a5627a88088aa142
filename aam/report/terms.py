"""Words of a report that not every reader knows, each with what it means."""

from __future__ import annotations

import html
import re

TERMS = {
    "MAE": "Mean absolute error: how far predictions are from the truth on average, in the units of the column",
    "RMSE": "Root mean squared error: as the MAE, but large errors count more",
    "NRMSE": "RMSE divided by the range of the true values",
    "R2": "Share of the variance that the predictions explain: 1 is perfect, 0 is always saying the mean",
    "Pearson": "Correlation of predicted and true values: 1 is a straight line, 0 is none",
    "Spearman": "Correlation of the ranks of predicted and true values",
    "AUROC": "Chance that a sample of one class is ranked above one of the other: 0.5 is guessing, 1 is perfect",
    "AUPRC": "Area under precision against recall; guessing gives the share of the class",
    "ECE": "Expected calibration error: how far probabilities are from the share that is right, on average",
    "accuracy": "Share of the samples whose class is right",
    "balanced accuracy": "Mean over the classes of the share that is right: each class counts the same",
    "macro F1": "Mean over the classes of the harmonic mean of precision and recall",
    "precision": "Of the samples called this class, the share that is",
    "recall": "Of the samples of this class, the share that is found",
    "coverage": "Share of the values that lie inside their intervals",
    "pooled": "Over the samples of all folds at once, not the mean of the folds",
    "Holm": "Correction of p for having compared with several baselines",
    "ROC": "Share of a class that is found against false alarms, at every threshold",
    "conformal": "Made so that they hold the stated share of new samples that are like these",
    "Mantel": "Correlation of predicted and true distances over all pairs of samples",
    "importance": "By how much the error rises when the ASV is permuted over the samples",
    "q": "p corrected for all tested ASVs: the share of false discoveries",
}  # fmt: skip

_WORD = re.compile(r"(?<![\w-])(" + "|".join(sorted(map(re.escape, TERMS), key=len, reverse=True)) + r")(?![\w-])")


def with_terms(text: object) -> str:
    """Return a text as HTML, escaped, whose known words show what they mean under a pointer."""
    plain = html.escape(str(text))
    return _WORD.sub(lambda word: f'<abbr data-tip="{html.escape(TERMS[word[0]])}">{word[0]}</abbr>', plain)
