"""Words and tables of an audit: what gives a target away, and what to do about it."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from aam.predict.audit import DEPTH_COLUMN, Audit
from aam.predict.leaks import LEAST_GAIN, LEAST_OF_LEVEL
from aam.report.charts import Table, shortened

# Rows of an audit and sentences about columns on a terminal, and names in a sentence.
MOST_ROWS, MOST_ADVICE, MOST_NAMES = 10, 6, 5

# The danger of a column in a table, and in a sentence; a score says how well it predicts.
DANGER_WORDS = {
    "confounded": (
        "cannot be told from it",
        "These samples cannot tell {column} from {target}: each value of {column} has one value "
        "of {target}. A model that looks good may have learned {column}.",
    ),
    "same": ("the target in other words", "{column} states {target} in other words: leave it out."),
    "random split": (
        "leaks on a random split",
        "{score} on a random split: --group-column {column} prevents this.",
    ),
    "split": ("gives it away", "{score}{remedy}"),
    "part": ("a part gives it away", "{score}: {column} is more than an id. Leave it out."),
    "suspect": (
        "too few groups to judge",
        "{score}: too few groups to judge whether this is chance.",
    ),
    "prevented": (
        "prevented by the groups",
        "{score} on a random split; each {divider} in one fold prevents this.",
    ),
}
UNSCORED = "Each value of {column} has one value of {target}: too few groups to judge."
STATE_WORDS = {
    "id": "{column} has a different value for every sample: an id, no leak.",
    "constant": "{column} is constant.",
    "empty": "{column} is empty.",
}
ASK_SEQUENCING = ": ask how the samples were sequenced."


def score_in_words(value: float, gain: float, classes: bool) -> str:
    """Return a score in a sentence."""
    if classes:
        return f"AUROC {value:.2f}"
    if gain <= 0:
        return f"a mean error of {value:.3g}, no better than guessing"
    return f"a mean error of {value:.3g} ({100 * gain:.0f} % less than guessing)"


def _remedy(row: Any, audit: Audit) -> str:
    """Return what to do about a column that tells the target on the split of `aam train`."""
    options, column = audit.recommendation, row.column
    if row.kind == "reads":
        return ASK_SEQUENCING if column == DEPTH_COLUMN else ": the report compares with it."
    if column == options.study:
        return f": --study-column {column} holds its values out."
    if column == options.batch:
        return f": --batch-column {column} compares within its values."
    if column in (*options.categorical, *options.numeric):
        return ": compare with a model that has it as a covariate."
    if row.form == "date":
        return ": add a column of its months or years, and compare within them with --batch-column."
    return ASK_SEQUENCING if row.kind == "technical" and row.form == "number" else "."


def _sentence(row: Any, audit: Audit) -> str:
    """Return a sentence about one column with the option that helps, or ''."""
    words = {"column": row.column, "target": audit.target}
    if not row.danger:
        return STATE_WORDS[row.state].format(**words) if row.state else ""
    is_on_split = row.danger in ("split", "part", "suspect")
    value, gain = (row.split, row.split_gain) if is_on_split else (row.random, row.random_gain)
    _, sentence = DANGER_WORDS[row.danger]
    if math.isnan(value) and "{score}" in sentence:
        return UNSCORED.format(**words)
    predictor = f"A part of {row.column} ({row.part})" if row.part else row.column
    in_words = score_in_words(value, gain, audit.classes)
    return sentence.format(
        **words,
        score=f"{predictor} predicts {audit.target} with {in_words}",
        remedy=_remedy(row, audit),
        divider=audit.divided_by or "group",
    )


def advice_of(audit: Audit) -> list[str]:
    """Return a sentence for each column, or '', the most dangerous first."""
    return [_sentence(row, audit) for row in audit.frame.itertuples()]


def warnings_of(audit: Audit) -> list[str]:
    """Return sentences on columns that these samples cannot tell from the target."""
    pairs = zip(audit.frame["danger"], advice_of(audit), strict=True)
    return [sentence for danger, sentence in pairs if danger == "confounded"]


def _absence(audit: Audit) -> list[str]:
    """Say that no column gives the target away, where one could have been seen, or that there are
    too few groups.
    """
    limit, unit = max(audit.noticeable, LEAST_GAIN), "groups" if audit.group else "samples"
    smallest = f"that removes {100 * limit:.0f} % of the error of guessing"
    if audit.classes:
        smallest = f"with AUROC {0.5 + limit / 2:.2f}"
    if not audit.can_judge:
        only = f"only a column {smallest} or more could be told from chance."
        none = f"no column that gives {audit.target} away could be told from chance."
        if audit.frame["danger"].isin(["split", "part"]).any():
            none = "read the advice above with care."
        return [f"Too few groups to judge ({audit.units} {unit}): {only if limit < 1 else none}"]
    if (~audit.frame["danger"].isin(["", "prevented"])).any():
        return []
    return [f"No column gives the target away; one {smallest} or more would have been seen."]


def _notes_on_target(audit: Audit) -> list[str]:
    """Return sentences on the absence of leaks, the split, and the score of the microbes."""
    notes = _absence(audit)
    if audit.divided_by is not None:
        notes.append(f"All samples of one {audit.divided_by} are in one fold.")
    if math.isnan(audit.microbes.value):
        few = f"{LEAST_OF_LEVEL} samples and {LEAST_OF_LEVEL} of other classes"
        notes.append(f"A score of {audit.target} needs a class of at least {few}.")
    else:
        words = score_in_words(audit.microbes.value, audit.microbes.gain, audit.classes)
        notes.append(f"A linear model of presence has {words} on a random split.")
    return notes


def _notes(audit: Audit) -> list[str]:
    """Return sentences about all columns and the microbes."""
    notes, frame = list[str](), audit.frame
    if audit.target is not None:
        notes += _notes_on_target(audit)
    elif audit.group is not None:
        notes.append(f"{audit.group} names the subjects: use --group-column {audit.group}.")
    for state in STATE_WORDS:
        names = frame["column"][(frame["state"] == state) & (frame["danger"] == "")]
        if len(names):
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            notes.append(f"Not judged ({state}): {', '.join(names[:MOST_NAMES])}{more}.")
    return notes


def sentences_of(audit: Audit) -> list[str]:
    """Return the sentences of an audit on a terminal below its table."""
    pairs = zip(audit.frame["danger"], advice_of(audit), strict=True)
    advice = [sentence for danger, sentence in pairs if danger not in ("", "confounded")]
    more = len(advice) - MOST_ADVICE
    rest = [f"{more} more columns tell the target; --output lists them."] if more > 0 else []
    return [*advice[:MOST_ADVICE], *rest, *_notes(audit)]


def recommended_options(audit: Audit) -> list[str]:
    """Return the options of `aam train` that an audit recommends, as words of a command."""
    options, words = audit.recommendation, list[str]()
    for name in ("group", "batch", "study"):
        if (column := getattr(options, name)) is not None:
            words += [f"--{name}-column", column]
    for name in ("categorical", "numeric"):
        if columns := getattr(options, name):
            words += [f"--{name}-columns", *columns]
    return words


def audit_table(audit: Audit, with_advice: bool = True, most: int | None = None) -> Table:
    """Return the audit as a table of a report; with `most` rows, without ids and constants."""
    shown = audit.frame
    if most is not None:
        shown = shown[(shown["state"] == "") | (shown["danger"] != "")].head(most)
    frame = shown[["column", "kind", "levels"]].astype(str)
    frame["column"] = [shortened(name, 30) for name in frame["column"]]
    if audit.target is None:
        frame["within"] = shown["within"]
        title = "What each column is"
    else:
        frame = frame.join(_scores(audit, shown))
        if with_advice:
            frame["advice"] = pd.Series(advice_of(audit), audit.frame.index)
        else:
            remarks = {danger: remark for danger, (remark, _) in DANGER_WORDS.items()}
            frame["remark"] = shown["danger"].map(remarks).fillna("")
        title = f"How well each column alone predicts {audit.target}"
    return Table(title, frame, "audit")


def _scores(audit: Audit, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of rows of an audit as text."""
    metric, form = ("AUROC", "{:.2f}") if audit.classes else ("mean error", "{:.3g}")
    split = f"by {shortened(audit.divided_by, 20)}" if audit.divided_by else "this split"
    gain = rows["microbes_gain"].clip(lower=0)
    scores = {
        f"{metric}, random split": rows["random"].map(form.format),
        f"{metric}, {split}": rows["split"].map(form.format),
        "microbes predict it": gain.map("{:.2f}".format),
    }
    return pd.DataFrame(scores).replace("nan", "-")
