"""Words and tables of an audit: what gives a target away, and what to do about it."""

from __future__ import annotations

from typing import Any

from aam.predict.audit import DEPTH, LEAST_GAIN, LEAST_OF_LEVEL, Audit
from aam.report.charts import Table, shortened

# Rows of an audit and sentences about columns on a terminal, and names in a sentence.
MOST_ROWS, MOST_SENTENCES, MOST_NAMES = 10, 6, 5

CONFOUNDED = (
    "These samples cannot tell {column} from {target}: each value of {column} has one value of "
    "{target}. A model that looks good may have learned {column}."
)
# What to do, by the danger of a column, after its score.
ADVICE = {
    "random split": " on a random split: --group-column {column} prevents this.",
    "part": ": {column} is more than an id. Leave it out.",
    "suspect": ": too few groups to judge whether this is chance.",
    "prevented": " on a random split; {group} in one fold prevents this.",
}
BATCH = ": --batch-column {column} compares within its values."
STUDY = ": --study-column {column} holds its values out."
DATE = ": add a column of its months or years, and compare within them with --batch-column."
COVARIATE = ": compare with a model that has it as a covariate."
READS = {True: ": ask how the samples were sequenced.", False: ": the report compares with it."}
STATES = {
    "empty": "{column} is empty.",
    "constant": "{column} is constant.",
    "id": "{column} has a different value for every sample: an id, no leak.",
}
# The danger of a column in a table.
REMARKS = {
    "confounded": "cannot be told from it",
    "same": "the target in other words",
    "random split": "leaks on a random split",
    "split": "gives it away",
    "part": "a part gives it away",
    "suspect": "too few groups to judge",
    "prevented": "prevented by the groups",
}


def score_in_words(value: float, gain: float, classes: bool) -> str:
    """Return a score in a sentence."""
    if classes:
        return f"AUROC {value:.2f}"
    if gain <= 0:
        return f"a mean error of {value:.3g}, no better than guessing"
    return f"a mean error of {value:.3g} ({100 * gain:.0f} % less than guessing)"


def _advice_on_split(row: Any, audit: Audit) -> str:
    """Return what to do about a column that tells the target on the split of `aam train`."""
    options = audit.recommendation
    if row.kind == "reads":
        return READS[row.column == DEPTH]
    if row.column == options.study:
        return STUDY
    if row.column == options.batch:
        return BATCH
    if row.column in (*options.categorical, *options.numeric):
        return COVARIATE
    if row.form == "date":
        return DATE
    return READS[True] if row.kind == "technical" and row.form == "number" else "."


def _advice_of(row: Any, audit: Audit) -> str:
    """Return a sentence about one column with the option that helps, or ''."""
    column, target = row.column, audit.target
    if row.danger == "confounded":
        return CONFOUNDED.format(column=column, target=target)
    if row.danger == "same":
        return f"{column} states {target} in other words: leave it out."
    if not row.danger:
        return STATES[row.state].format(column=column) if row.state else ""
    on_split = row.danger in ("split", "part", "suspect")
    scores = (row.split, row.split_gain) if on_split else (row.random, row.random_gain)
    if scores[0] != scores[0]:
        return f"Each value of {column} has one value of {target}: too few groups to judge."
    words = score_in_words(*scores, audit.classes)
    advice = ADVICE.get(row.danger) or _advice_on_split(row, audit)
    group = f"each {audit.divided_by or 'group'}"
    subject = f"A part of {column} ({row.part})" if row.part else column
    return f"{subject} predicts {target} with {words}{advice.format(column=column, group=group)}"


def advice_of(audit: Audit) -> list[str]:
    """Return a sentence for each column, or '', the most dangerous first."""
    return [_advice_of(row, audit) for row in audit.frame.itertuples()]


def warnings_of(audit: Audit) -> list[str]:
    """Return sentences on columns that these samples cannot tell from the target."""
    confounded = audit.frame["danger"] == "confounded"
    return [text for text, is_first in zip(advice_of(audit), confounded, strict=True) if is_first]


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


def notes_of(audit: Audit) -> list[str]:
    """Return sentences about all columns, the microbes, and nearly identical samples."""
    notes, states = list[str](), audit.frame["state"]
    if audit.target is not None:
        notes += _absence(audit)
        if audit.divided_by is not None:
            notes.append(f"All samples of one {audit.divided_by} are in one fold.")
        scores = audit.microbes.value, audit.microbes.gain, audit.classes
        if scores[0] == scores[0]:
            words = score_in_words(*scores)
            notes.append(f"A linear model of presence has {words} on a random split.")
        else:
            few = f"{LEAST_OF_LEVEL} samples and {LEAST_OF_LEVEL} of other classes"
            notes.append(f"A score of {audit.target} needs a class of at least {few}.")
    elif audit.group is not None:
        notes.append(f"{audit.group} names the subjects: use --group-column {audit.group}.")
    for state in ("id", "constant", "empty"):
        names = audit.frame["column"][(states == state) & (audit.frame["danger"] == "")]
        if len(names):
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            notes.append(f"Not judged ({state}): {', '.join(names[:MOST_NAMES])}{more}.")
    if pairs := audit.duplicates:
        notes.append(f"{len(pairs)} pairs of samples are nearly identical, such as {pairs[0]}.")
    return notes


def sentences_of(audit: Audit) -> list[str]:
    """Return the sentences of an audit on a terminal below its table."""
    danger = audit.frame["danger"]
    telling = ~danger.isin(["", "confounded"])
    advice = [text for text, shows in zip(advice_of(audit), telling, strict=True) if shows]
    more = len(advice) - MOST_SENTENCES
    hidden = [f"{more} more columns tell the target; --output lists them."] if more > 0 else []
    return [*advice[:MOST_SENTENCES], *hidden, *notes_of(audit)]


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
    """The audit as a table of a report; without ids and constants, at most `most` rows."""
    metric, form = ("AUROC", "{:.2f}") if audit.classes else ("mean error", "{:.3g}")
    judged = (audit.frame["state"] == "") | (audit.frame["danger"] != "")
    shown = audit.frame[judged].head(most) if most is not None else audit.frame
    frame = shown[["column", "kind", "levels"]].astype(str)
    frame["column"] = [shortened(name, 30) for name in frame["column"]]
    if audit.target is None:
        frame["within"] = shown["within"]
        title = "What each column is"
    else:
        frame[f"{metric}, random split"] = shown["random"].map(form.format)
        split = f"by {shortened(audit.divided_by, 20)}" if audit.divided_by else "this split"
        frame[f"{metric}, {split}"] = shown["split"].map(form.format)
        frame["microbes predict it"] = shown["microbes_gain"].clip(lower=0).map("{:.2f}".format)
        frame = frame.replace("nan", "-")
        advice = advice_of(audit)
        frame["advice" if with_advice else "remark"] = [
            advice[place] if with_advice else REMARKS.get(danger, "")
            for place, danger in zip(shown.index, shown["danger"], strict=True)
        ]
        title = f"How well each column alone predicts {audit.target}"
    rows = tuple(frame.itertuples(index=False, name=None))
    return Table(title, tuple(frame), rows, "audit")
