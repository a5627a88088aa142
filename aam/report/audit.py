"""Words and table of an audit: its figures, and only sentences that follow from them."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from aam.predict.audit import DEPTH_COLUMN, RICHNESS, Audit
from aam.predict.leaks import LEAST_GAIN, LEAST_OF_LEVEL
from aam.report.charts import Table, shortened

# Rows of an audit and sentences about columns on a terminal, and names in a sentence.
MOST_ROWS, MOST_ADVICE, MOST_NAMES = 10, 6, 5

REMARK_WORDS = {
    "same": "cannot be told from it",
    "gives away": "gives it away",
    "donors": "may name donors",
    "ordered": "groups samples, in order",
    "id": "an id",
    "constant": "constant",
    "": "",
}


def score_in_words(value: float, gain: float, classes: bool) -> str:
    """Return a score in a sentence."""
    if classes:
        return f"AUROC {value:.2f}"
    if gain <= 0:
        return f"a mean error of {value:.3g}, no better than guessing"
    return f"a mean error of {value:.3g} ({100 * gain:.0f} % less than guessing)"


def _sentence(row: Any, audit: Audit) -> str:
    """Return what follows from the figures of a column, or ''."""
    column, target = row.column, audit.target
    if row.remark == "same" and audit.classes:
        return (
            f"Each value of {column} has one value of {target}: these samples cannot tell them "
            f"apart. A model that looks good may have learned {column}; do not pass it as a "
            "covariate."
        )
    if row.remark == "same":
        return (
            f"{column} rises or falls with {target}, or cuts it into parts: do not pass it as a "
            "covariate."
        )
    if row.remark == "gives away":
        words = score_in_words(row.split, row.split_gain, audit.classes)
        remedy = "as a covariate, leave it out or justify it"
        if column in (DEPTH_COLUMN, RICHNESS):
            remedy = "the report compares the model with it"
        return f"{column} alone predicts {target} with {words}: {remedy}."
    alike = f"Two samples with the same {column} are more alike than others ("
    alike += f"{row.same_value:.2f} and {row.other_values:.2f} of 1)"
    if row.remark == "ordered":
        return f"{alike}, and so are those of successive values: it is ordered, as a time is."
    return f"{alike}: it may name donors." if row.remark == "donors" else ""


def advice_of(audit: Audit) -> list[str]:
    """Return a sentence for each column, or '', the most dangerous first."""
    return [_sentence(row, audit) for row in audit.frame.itertuples()]


def with_advice(audit: Audit) -> pd.DataFrame:
    """One row per column of an audit, with its advice: what columns.tsv holds."""
    return audit.frame.assign(advice=advice_of(audit))


def warnings_of(audit: Audit) -> list[str]:
    """Return sentences on columns that these samples cannot tell from the target."""
    return [_sentence(row, audit) for row in audit.frame.itertuples() if row.remark == "same"]


def _absence(audit: Audit) -> list[str]:
    """Say that no column gives the target away, where one could have been seen, or that there are
    too few groups.
    """
    limit = max(audit.noticeable, LEAST_GAIN)
    group = audit.group or audit.recommended_group
    unit = f"values of {group}" if group else "samples"
    unit += f", divided by {audit.divided_by}" if audit.divided_by not in (None, group) else ""
    smallest = f"that removes {100 * limit:.0f} % of the error of guessing"
    if audit.classes:
        smallest = f"with AUROC {0.5 + limit / 2:.2f}"
    if not audit.can_judge:
        only = f"only a column {smallest} or more could be told from chance."
        none = "no column could be told from chance."
        return [f"Too few groups to judge ({audit.units} {unit}): {only if limit < 1 else none}"]
    frame = audit.frame
    tells = (frame["split_low"] > 0) & (frame["split_gain"] >= LEAST_GAIN)
    if (tells | (frame["remark"] == "same")).any():
        return []
    return [f"No column gives {audit.target} away; one {smallest} or more would have been seen."]


def _about_groups(audit: Audit) -> list[str]:
    """Say which columns may name donors, and which are on both sides of the split of the groups."""
    if audit.group is not None:
        others = [name for name in audit.donors if name != audit.group]
        sentence = f"All samples of one {audit.group} are in one fold."
        if audit.group in audit.donors or not others:
            return [sentence]
        return [f"{sentence} Is {' or '.join(others[:MOST_NAMES])} what must stay together?"]
    if not audit.donors:
        return ["No column that may name donors was found; choose --group-column if one does."]
    if audit.recommended_group is not None:
        return []
    listed = ", ".join(audit.donors[:MOST_NAMES])
    return [f"Several columns may name donors: {listed}. Choose --group-column."]


def _notes(audit: Audit) -> list[str]:
    """Return sentences about all columns, and the microbes."""
    frame = audit.frame
    notes = _absence(audit) if audit.target is not None else []
    notes += _about_groups(audit)
    if audit.target is not None and math.isnan(audit.microbes.value):
        few = f"{LEAST_OF_LEVEL} samples and {LEAST_OF_LEVEL} of other classes"
        notes.append(f"A score of {audit.target} needs a class of at least {few}.")
    elif audit.target is not None:
        words = score_in_words(audit.microbes.value, audit.microbes.gain, audit.classes)
        notes.append(f"A linear model of presence has {words} on a random split.")
    for remark in ("id", "constant"):
        if len(names := frame["column"][frame["remark"] == remark]):
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            words = REMARK_WORDS[remark]
            notes.append(f"Not judged ({words}): {', '.join(names[:MOST_NAMES])}{more}.")
    return notes


def sentences_of(audit: Audit) -> list[str]:
    """Return the sentences of an audit on a terminal below its table."""
    advice = [sentence for sentence in advice_of(audit) if sentence]
    more = len(advice) - MOST_ADVICE
    rest = [f"{more} more columns have a remark; --output lists them."] if more > 0 else []
    return [*advice[:MOST_ADVICE], *rest, *_notes(audit)]


def audit_table(audit: Audit, most: int | None = None) -> Table:
    """Return the figures of an audit as a table; with `most` rows, without ids and constants."""
    rows = audit.frame
    if most is not None:
        rows = rows[~rows["remark"].isin(["id", "constant"])].head(most)
    frame = pd.DataFrame({"column": [shortened(name, 30) for name in rows["column"]]}, rows.index)
    frame = frame.assign(levels=rows["levels"].astype(str), samples=rows["samples"].astype(str))
    title = "Likeness of samples with the same value of each column"
    if audit.target is not None:
        metric, form = ("AUROC", "{:.2f}") if audit.classes else ("mean error", "{:.3g}")
        by = f"by {shortened(audit.divided_by, 20)}" if audit.divided_by else "this split"
        frame[f"{metric}, random split"] = rows["random"].map(form.format)
        frame[f"{metric}, {by}"] = rows["split"].map(form.format)
        frame["decides it"] = rows["decides"].map("{:.2f}".format)
        frame["is decided"] = rows["decided"].map("{:.2f}".format)
        title = f"How well each column alone predicts {audit.target}"
    frame["alike, same value"] = rows["same_value"].map("{:.2f}".format)
    frame["others"] = rows["other_values"].map("{:.2f}".format)
    if audit.target is not None:
        gain = rows["microbes_gain"].clip(lower=0)
        frame["microbes predict it"] = gain.map("{:.2f}".format)
    frame["remark"] = rows["remark"].map(REMARK_WORDS)
    figures = frame.columns[1:]
    return Table(title, frame.assign(**frame[figures].replace("nan", "-")), "audit")
