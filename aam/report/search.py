"""What a search for options has found, as tables, figures and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt

from aam.evaluate.bootstrap import Interval
from aam.evaluate.numbers import number
from aam.files.atomic import write_text
from aam.report.charts import HEIGHT, WIDTH, Figure, IntervalRow, data, interval_chart, levels, lines, x_axis, y_axis
from aam.report.report_html import page_frame, templates
from aam.report.tables import Table, plain_lines

# What a trial came to, and the number of its colour.
STATES = {"came to its end": 0, "pruned": 8}

DEFINITION = (
    "The relative error of a number is the mean absolute error over that of the median, that of classes 1 - AUROC over "
    "0.5: 0 is perfect, 1 is worthless. It is the mean over the inner folds, which no test sample is in; the best of "
    "many trials looks better than it is, so only a test on other samples says how well these options predict."
)


@dataclass(frozen=True)
class TrialResult:
    """A trial: its place in the search, whether it came to its end, its relative error, its seconds, its options."""

    place: int
    complete: bool
    error: float
    seconds: float
    values: Mapping[str, str]


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, in their order, and the importance of options; none where trials are too few."""

    targets: Sequence[str]
    trials: Sequence[TrialResult]
    importance: Mapping[str, float]

    @property
    def best(self) -> TrialResult:
        """The trial of the lowest error of those that came to their end."""
        return min((trial for trial in self.trials if trial.complete), key=lambda trial: trial.error)

    def sentence(self) -> str:
        """Return the best trial and, where it was tried, how the options did as they were given."""
        first = next((trial for trial in self.trials if trial.place == 1 and trial.complete), None)
        before = f", {number(first.error)} with the options as given" if first is not None else ""
        targets = ", ".join(self.targets)
        return f"{targets}: relative error {number(self.best.error)} in trial {self.best.place}{before}"

    def importance_table(self) -> Table:
        """Return the share of each option in the variance of the error."""
        rows = tuple((name, f"{100 * share:.0f} %") for name, share in self.importance.items())
        return Table("Importance of the options (share of the variance of the error)", ("option", "importance"), rows)

    def trial_table(self) -> Table:
        """Return the trials, the best one first."""
        ordered = sorted(self.trials, key=lambda trial: (not trial.complete, trial.error))
        header = ("trial", "state", "relative error", "seconds", *ordered[0].values)
        rows = tuple(
            (str(one.place), "complete" if one.complete else "pruned", number(one.error), number(one.seconds),
             *one.values.values())
            for one in ordered
        )  # fmt: skip
        return Table("Trials", header, rows)

    def lines(self) -> list[str]:
        """Return the result for a terminal."""
        return [self.sentence(), *(plain_lines(self.importance_table()) if self.importance else [])]


def search_figures(result: SearchResult) -> list[Figure]:
    """Return the error of the trials in their order and, where it is known, the importance of the options."""
    best, steps, rows = float("inf"), [], []
    for one in result.trials:
        best = min(best, one.error) if one.complete else best
        steps.append(("", one.place, best))
        state = list(STATES)[not one.complete]
        tip = f"trial {one.place}: {number(one.error)}"
        rows.append({"x": one.place, "y": one.error, "state": state, "tip": tip})
    points = alt.Chart(data(rows)).mark_point(aria=True, opacity=1)
    points = points.encode(
        x=x_axis("trial"), y=y_axis("relative error"), description="tip:N", **levels("state", STATES)
    )
    trials = Figure(
        "trials", "Error of the trials", f"{len(result.trials)} trials; {result.sentence()}.",
        alt.layer(lines(steps), points).properties(width=WIDTH, height=HEIGHT), "The line is the best trial so far.",
    )  # fmt: skip
    if not result.importance:
        return [trials]
    shares = [
        IntervalRow(name, Interval(share, 0.0, share), 0, f"{100 * share:.0f} %")
        for name, share in result.importance.items()
    ]
    importance = Figure(
        "importance", "Importance of the options", f"{'; '.join(f'{row.name} {row.text}' for row in shares)}.",
        interval_chart(shares, "share of the variance of the error", zero=True),
        "Share of each option in the variance of the error over the trials, by a forest of them (fANOVA).",
    )  # fmt: skip
    return [importance, trials]


def write_search(folder: Path, result: SearchResult) -> None:
    """Write trials.tsv, importance.tsv, figures/ and tune.html to a folder."""
    importance = [("option", "importance"), *((name, f"{share:.6g}") for name, share in result.importance.items())]
    trials = [("trial", "state", "relative-error", "seconds", *result.trials[0].values)]
    for one in result.trials:
        state = "complete" if one.complete else "pruned"
        trials.append((str(one.place), state, repr(one.error), f"{one.seconds:g}", *one.values.values()))
    for name, rows in (("trials", trials), ("importance", importance)):
        text = io.StringIO(newline="")
        csv.writer(text, dialect="excel-tab", lineterminator="\n").writerows(rows)
        write_text(folder / f"{name}.tsv", text.getvalue())
    figures = search_figures(result)
    for figure in figures:
        figure.write(folder / "figures")
    page = templates().get_template("tune.html.j2")
    tables = [result.importance_table(), result.trial_table()]
    write_text(
        folder / "tune.html",
        page.render(
            page_frame(), title="aam tune", opening=result.sentence(), definition=DEFINITION, figures=figures,
            tables=tables,
        )
        + "\n",
    )  # fmt: skip
