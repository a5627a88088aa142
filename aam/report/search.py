"""What a search for options has found, as tables, figures and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aam.evaluate.numbers import number
from aam.files.atomic import write_text
from aam.report.figures.plot import BOTTOM, TOP, WIDTH, Plot, span
from aam.report.figures.svg import Figure, standalone
from aam.report.report_html import page_frame, templates
from aam.report.tables import Table, plain_lines

# Height of a row of a figure, in pixels.
ROW = 28.0

FINISHED, PRUNED = 0, 8

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
    plot = Plot(span([one.place for one in result.trials]), span([one.error for one in result.trials]))
    plot.axes("trial", "relative error")
    best, steps = float("inf"), []
    for one in result.trials:
        label = f"trial {one.place}: {number(one.error)}"
        plot.mark(plot.x(one.place), plot.y(one.error), FINISHED if one.complete else PRUNED, label)
        best = min(best, one.error) if one.complete else best
        steps.append((float(one.place), best))
    plot.curve(steps, f"s{FINISHED}")
    figures = [
        Figure(
            "trials", "Error of the trials", f"{len(result.trials)} trials; {result.sentence()}.", plot.width,
            plot.height, plot.body, "The line is the best trial so far.",
            ((FINISHED, "came to its end"), (PRUNED, "pruned")),
        )
    ]  # fmt: skip
    if not result.importance:
        return figures
    plot = Plot((0.0, 1.0), (0.0, 1.0), (WIDTH, TOP + ROW * len(result.importance) + BOTTOM), left=16.0)
    plot.x_axis("share of the variance of the error")
    for row, (name, share) in enumerate(result.importance.items()):
        top = TOP + ROW * row
        plot.text(plot.x.start, top + 11, name, "small")
        plot.text(plot.x.end, top + 11, f"{100 * share:.0f} %", "small soft end")
        plot.line((plot.x(0), top + 18), (plot.x(share), top + 18), f"s{FINISHED}", 5)
    listed = "; ".join(f"{name} {100 * share:.0f} %" for name, share in result.importance.items())
    importance = Figure(
        "importance", "Importance of the options", f"{listed}.", plot.width, plot.height, plot.body,
        "Share of each option in the variance of the error over the trials, by a forest of them (fANOVA).",
    )  # fmt: skip
    return [importance, *figures]


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
        write_text(folder / "figures" / f"{figure.name}.svg", standalone(figure))
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
