"""What a search for options has found, as tables, a figure and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from aam.evaluate.intervals import number
from aam.files.atomic import write_text
from aam.report.charts import HEIGHT, WIDTH, Figure, data, levels, lines, x_axis, y_axis
from aam.report.report_html import page_frame, templates
from aam.report.tables import Table

# The states of a trial, and the numbers of their colours.
STATES = {"complete": 0, "pruned": 8}

ERROR = "relative-error"

IMPORTANCE = ("option", "importance")

DEFINITION = (
    "The relative error of a number is the mean absolute error over that of the median, that of classes 1 - AUROC over "
    "0.5: 0 is perfect, 1 is worthless. It is the mean over the inner folds, which no test sample is in; the best of "
    "many trials looks better than it is, so only a test on other samples says how well these options predict."
)


def _figure(sentence: str, trials: Sequence[dict[str, Any]]) -> Figure:
    """Return the errors of the trials in their order, and the best one so far as a line."""
    best, steps, rows = float("inf"), [], []
    for trial in trials:
        at, error, state = trial["trial"], trial[ERROR], trial["state"]
        best = min(best, error) if state == "complete" else best
        steps.append(("", at, best))
        rows.append({"x": at, "y": error, "state": state, "tip": f"trial {at}: {number(error)}"})
    points = alt.Chart(data(rows)).mark_point(aria=True, opacity=1)
    points = points.encode(
        x=x_axis("trial"), y=y_axis("relative error"), description="tip:N", **levels("state", STATES)
    )
    return Figure(
        "trials", "Error of the trials", f"{len(trials)} trials; {sentence}.",
        alt.layer(lines(steps), points).properties(width=WIDTH, height=HEIGHT), "The line is the best trial so far.",
    )  # fmt: skip


def write_search(
    folder: Path, sentence: str, trials: Sequence[dict[str, Any]], importance: Mapping[str, float]
) -> None:
    """Write trials.tsv, importance.tsv, figures/ and tune.html to a folder.

    Parameters
    ----------
    folder : Path
    sentence : str
        The result.
    trials : sequence of mapping
        Number, state (complete or pruned), relative error, seconds and options of each trial, in their order.
    importance : mapping
        The share of each option in the variance of the error; nothing where trials are too few.
    """
    shares = [{"option": name, "importance": f"{share:.6g}"} for name, share in importance.items()]
    for name, table in (("trials", pd.DataFrame(trials)), ("importance", pd.DataFrame(shares, columns=IMPORTANCE))):
        write_text(folder / f"{name}.tsv", table.to_csv(sep="\t", index=False, lineterminator="\n"))
    ordered = sorted(trials, key=lambda trial: (trial["state"], trial[ERROR]))
    rows = tuple(tuple(map(str, (trial | {ERROR: number(trial[ERROR])}).values())) for trial in ordered)
    percent = tuple((name, f"{100 * share:.0f} %") for name, share in importance.items())
    tables = [
        Table("Importance of the options (share of the variance of the error)", IMPORTANCE, percent),
        Table("Trials", tuple(trials[0]), rows),
    ]
    figure = _figure(sentence, trials)
    figure.write(folder / "figures")
    page = templates().get_template("tune.html.j2")
    texts = {"title": "aam tune", "opening": sentence, "definition": DEFINITION}
    write_text(folder / "tune.html", page.render(page_frame(), **texts, figures=[figure], tables=tables) + "\n")
