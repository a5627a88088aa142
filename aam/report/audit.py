"""Table and sentences of an audit; templates/audit.j2 has the words."""

from __future__ import annotations

from typing import Any

import pandas as pd

from aam.predict.audit import DEPTH_COLUMN, RICHNESS, Audit
from aam.predict.leaks import LEAST_OF_LEVEL
from aam.report.charts import Table, middle_cut
from aam.report.record import rendered

# Rows of an audit and sentences about columns on a terminal, and names in a sentence.
MOST_ROWS, MOST_ADVICE, MOST_NAMES = 10, 6, 5

REMARK_WORDS = {
    "same": "cannot be told from it",
    "predicts": "predicts it",
    "donors": "may name donors",
    "ordered": "groups samples, in order",
    "id": "an id",
    "constant": "constant",
    "": "",
}


def _sentences(audit: Audit) -> Any:
    """The sentences of an audit: ``advice`` of a row, and ``notes``, one a line."""
    frame = audit.frame
    return rendered(
        "audit.j2",
        audit=audit,
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
    shares = {"alike, same value": "same_value", "others": "other_values"}
    title, scores = "Likeness of samples with the same value of each column", {}
    if audit.target is not None:
        metric, form = ("AUROC", "{:.2f}") if audit.classes else ("mean error", "{:.3g}")
        by = f"by {middle_cut(audit.divided_by, 20)}" if audit.divided_by else "this split"
        for split, name in (("random split", "random"), (by, "split")):
            scores[f"{metric}, {split}"] = rows[name].map(form.format)
        rows = rows.assign(microbes_gain=rows["microbes_gain"].clip(lower=0))
        shares = {"decides it": "decides", "is decided": "decided", **shares}
        shares["microbes predict it"] = "microbes_gain"
        title = f"How well each column alone predicts {audit.target}"
    figures = scores | {words: rows[name].map("{:.2f}".format) for words, name in shares.items()}
    frame = pd.DataFrame(
        {
            "column": [middle_cut(name, 30) for name in rows["column"]],
            "levels": rows["levels"].astype(str),
            "samples": rows["samples"].astype(str),
            **{words: column.replace("nan", "-") for words, column in figures.items()},
            "remark": rows["remark"].map(REMARK_WORDS),
        }
    )
    return Table(title, frame, "audit")
