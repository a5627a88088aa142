"""Words and tables of an audit: how well each metadata column predicts a target."""

from __future__ import annotations

from typing import Any

from aam.predict.audit import DEPTH, LEAST_OF_LEVEL, MOST_LEVELS, RICHNESS, Audit, Score
from aam.report.charts import Table, shortened

# What to do, by the danger of a column.
ADVICE = {
    "same": ": it may state the target in other words. Leave it out of the covariates.",
    "random split": " on a random split: use --group-column {0}.",
    "split": ": compare with a model that has it as a covariate.",
    "prevented": " on a random split; the groups of the split prevent this.",
}
LEVELS_ADVICE = ": use --batch-column {0}, or --study-column {0} to hold its values out."
READS_ADVICE = {
    DEPTH: ": ask how the samples were sequenced.",
    RICHNESS: ": the report compares the model with it.",
}
STATES = {
    "empty": "{0} is empty.",
    "constant": "{0} is constant.",
    "id": "{0} has a different value for every sample: an id, no leak.",
}


def score_in_words(value: float, gain: float, classes: bool) -> str:
    """Return a score in a sentence."""
    if classes:
        return f"AUROC {value:.2f}"
    return f"a mean error of {value:.3g} ({100 * gain:.0f} % less than guessing)"


def _advice_of(row: Any, audit: Audit) -> str:
    """Return a sentence about one column with the option that helps, or ''."""
    if row.state:
        return STATES[row.state].format(row.column)
    if not row.danger:
        return ""
    of_split = row.danger in ("same", "split")
    scores = (row.split, row.split_gain) if of_split else (row.random, row.random_gain)
    has_levels = row.has_levels and row.levels <= MOST_LEVELS
    usual = LEVELS_ADVICE if row.danger == "split" and has_levels else ADVICE[row.danger]
    advice = READS_ADVICE.get(row.column, usual).format(row.column)
    return (
        f"{row.column} predicts {audit.target} with {score_in_words(*scores, audit.classes)}"
        + advice
    )


def advice_of(audit: Audit) -> list[str]:
    """Return a sentence for each column, or '', the most dangerous first."""
    return [_advice_of(row, audit) for row in audit.frame.itertuples()]


def notes_of(audit: Audit) -> list[str]:
    """Return sentences about the score of the microbes and about nearly identical samples."""
    own: Score = audit.microbes
    notes = [f"Nothing is judged: no class of {audit.target} has {LEAST_OF_LEVEL} samples."]
    if own.value == own.value:
        notes = [] if audit.frame["danger"].any() else ["No column gives the target away."]
        words = score_in_words(own.value, own.gain, audit.classes)
        notes.append(f"A linear model of presence has {words} on a random split.")
    if pairs := audit.duplicates:
        notes.append(f"{len(pairs)} pairs of samples are nearly identical, such as {pairs[0]}.")
    return notes


def audit_table(audit: Audit, with_advice: bool = True) -> Table:
    """The audit as a table of a report."""
    metric, form = ("AUROC", "{:.2f}") if audit.classes else ("mean error", "{:.3g}")
    frame = audit.frame[["column", "levels"]].astype(str)
    frame["column"] = [shortened(name, 30) for name in frame["column"]]
    frame[f"{metric}, random split"] = audit.frame["random"].map(form.format)
    frame[f"{metric}, this split"] = audit.frame["split"].map(form.format)
    frame["microbes predict it"] = audit.frame["microbes_gain"].clip(lower=0).map("{:.2f}".format)
    frame = frame.replace("nan", "-").assign(advice=advice_of(audit))
    shown = frame if with_advice else frame.drop(columns="advice")
    title = f"How well each column alone predicts {audit.target}"
    rows = tuple(shown.itertuples(index=False, name=None))
    return Table(title, tuple(shown), rows, "audit")
