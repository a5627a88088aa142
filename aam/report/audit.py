"""Table and sentences of an audit; templates/audit.j2 has the words."""

from __future__ import annotations

from typing import Any

import pandas as pd

from aam.predict.audit import DEPTH_COLUMN, RICHNESS, Audit
from aam.predict.leaks import LEAST_GAIN, LEAST_OF_LEVEL
from aam.report.charts import Table, shortened
from aam.report.record import rendered

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


def _sentences(audit: Audit) -> Any:
    """The sentences of an audit: ``advice`` of a row, and ``notes``, one a line."""
    frame = audit.frame
    has_found = bool((frame["remark"] == "same").any())
    if audit.target is not None:
        tells = (frame["split_low"] > 0) & (frame["split_gain"] >= LEAST_GAIN)
        has_found |= bool(tells.any())
    return rendered(
        "audit.j2",
        audit=audit,
        limit=max(audit.noticeable, LEAST_GAIN),
        has_found=has_found,
        measured=(DEPTH_COLUMN, RICHNESS),
        unjudged={
            REMARK_WORDS[remark]: frame["column"][frame["remark"] == remark].tolist()
            for remark in ("id", "constant")
        },
        least_of_level=LEAST_OF_LEVEL,
        most_names=MOST_NAMES,
    )


def _advice(audit: Audit, rows: pd.DataFrame) -> list[str]:
    """A sentence for each of the rows of an audit, or ''."""
    advice = _sentences(audit).advice
    return [str(advice(row)) for row in rows.itertuples()]


def with_advice(audit: Audit) -> pd.DataFrame:
    """One row per column of an audit, with its advice: what columns.tsv holds."""
    return audit.frame.assign(advice=_advice(audit, audit.frame))


def warnings_of(audit: Audit) -> list[str]:
    """Return sentences on columns that these samples cannot tell from the target."""
    return _advice(audit, audit.frame[audit.frame["remark"] == "same"])


def sentences_of(audit: Audit) -> list[str]:
    """Return the sentences of an audit on a terminal below its table."""
    advice = [sentence for sentence in _advice(audit, audit.frame) if sentence]
    more = len(advice) - MOST_ADVICE
    rest = [f"{more} more columns have a remark; --output lists them."] if more > 0 else []
    notes = str(_sentences(audit).notes).split("\n")
    return [*advice[:MOST_ADVICE], *rest, *filter(None, notes)]


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
