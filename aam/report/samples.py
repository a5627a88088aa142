"""Words, tables and the picture of samples that do not fit."""

from __future__ import annotations

import numpy as np
import pandas as pd

from aam.predict.mixture import LEAST_TABLE_SAMPLES
from aam.predict.sample_check import SampleCheck
from aam.report import charts
from aam.report.charts import Figure, Table, plain_lines, shortened

# Rows of a table on a terminal, and characters of an id.
MOST_ROWS, LONGEST_ID = 10, 30

NO_MIXTURE = "No sample is suspected to contain another one."
TITLE = "Samples that may contain another sample"
CHANCE = "About 1 in 20 of these is expected by chance."
NO_SUBJECTS = (
    "No subjects are given, so a sample may be named for another one of its own subject: name the "
    "subjects with --group-column."
)
LIMITS = {
    "few samples": (
        f"Fewer than {LEAST_TABLE_SAMPLES} samples have reads: too few to look for mix-ups."
    ),
    "needs subjects": (
        "Samples of this table resemble each other as those of one subject do. To look for samples "
        "that contain another one, name the subjects with --group-column."
    ),
}
UNTOLD = "Subjects cannot be told apart here, so no label is questioned."
ASK = (
    "These are suspicions: ask the laboratory. Relatives, cage mates, replicates and newborns give "
    "the same signs. --exclude FILE leaves samples out."
)


def _table(title: str, frame: pd.DataFrame, kind: str) -> list[str]:
    """Lines of the first rows of a frame of text."""
    rows = frame.head(MOST_ROWS).map(lambda text: shortened(str(text), LONGEST_ID))
    title = f"{title}: {len(frame)}" + f", the first {MOST_ROWS}" * (len(frame) > MOST_ROWS)
    return plain_lines(Table(title, rows, kind))


def _mixture_lines(check: SampleCheck) -> list[str]:
    samples = check.samples
    mixed = samples[samples["mixed"]].sort_values("evidence", ascending=False)
    if not len(mixed):
        return [] if LIMITS.keys() & set(check.limits) else [NO_MIXTURE]
    features = check.mixtures.groupby("sample")["feature"].size()
    frame = pd.DataFrame(
        {
            "sample": mixed.index,
            "source": mixed["source"].to_numpy(),
            "share": [f"{100 * share:.1f} %" for share in mixed["share"]],
            "evidence": [f"{evidence:.0f}" for evidence in mixed["evidence"]],
            "features": [str(features.get(name, 0)) for name in mixed.index],
        }
    )
    alone = [NO_SUBJECTS] * ("no subjects" in check.limits)
    return [*_table(TITLE, frame, "mixtures"), CHANCE, *alone]


def _duplicate_lines(check: SampleCheck) -> list[str]:
    if not len(check.duplicates):
        return []
    frame = check.duplicates.rename(columns={"first": "sample", "second": "nearly the same as"})
    title = "Pairs that resemble each other like two draws of one sample"
    return _table(title, frame, "duplicates")


def _subject_lines(check: SampleCheck) -> list[str]:
    if pd.isna(check.share_own):
        return []
    judged = int(check.own.notna().sum())
    lines = [f"{100 * check.share_own:.0f} % of {judged} samples fit their own subject best."]
    if "subjects not told apart" in check.limits:
        return [*lines, UNTOLD]
    if len(check.swaps):
        frame = pd.DataFrame(
            {
                "sample": check.swaps["first"],
                "fits the subject of": check.swaps["second"],
                "labelled": check.swaps["first_subject"] + ", " + check.swaps["second_subject"],
            }
        )
        lines += _table("Pairs that each fit the subject of the other", frame, "swaps")
    samples = check.samples
    misfit = samples[samples["misfit"]].sort_values("margin", ascending=False)
    if len(misfit):
        frame = pd.DataFrame(
            {
                "sample": misfit.index,
                "labelled": misfit["subject"].to_numpy(),
                "fits": misfit["fits"].to_numpy(),
                "margin": [f"{margin:.1f}" for margin in misfit["margin"]],
            }
        )
        lines += _table("Samples that fit another subject", frame, "misfits")
    if not len(misfit) and not len(check.swaps):
        lines.append("No sample is suspected to be of another subject.")
    for run in check.shifts:
        what = f"{len(run)} neighbours in the sheet, {run[0]} to {run[-1]}, each fit the subject of"
        lines.append(f"{what} the next row or of the row before: a possible shift.")
    return lines


def sample_lines(check: SampleCheck, subjects: str | None = None) -> list[str]:
    """What `aam audit` prints of samples that do not fit; `subjects` is the column of subjects."""
    lines = [] if subjects is None else [f"The subjects are the values of {subjects}."]
    lines += [LIMITS[limit] for limit in check.limits if limit in LIMITS]
    suspicions = len(check.swaps) + len(check.duplicates) + len(check.shifts)
    suspicions += int(check.samples["mixed"].sum() + check.samples["misfit"].sum())
    lines += [*_mixture_lines(check), *_duplicate_lines(check), *_subject_lines(check)]
    return ["Samples that do not fit", *lines, *[ASK] * (suspicions > 0)]


def fit_figure(check: SampleCheck) -> Figure | None:
    """Picture of the own fit against the best other fit; None without subjects."""
    samples, own = check.samples, check.own
    judged = samples[own.notna()]
    if not len(judged):
        return None
    swapped = {*check.swaps["first"], *check.swaps["second"]}
    rows, kinds = [], ("no suspicion", "suspicion")
    order = judged["misfit"].to_numpy() | judged.index.isin(swapped)
    drawn = set(charts.drawn_rows(len(judged)).tolist())
    for at, (name, row) in enumerate(judged.iterrows()):
        if at not in drawn and not order[at]:
            continue
        other = float(own[name] + row["margin"])
        tip = f"{name}: labelled {row['subject']}, other subject {row['fits']}"
        point = {"x": float(own[name]), "y": other, "tip": tip}
        rows.append({**point, "kind": kinds[int(order[at])]})
    fits = np.concatenate([own[judged.index], own[judged.index] + judged["margin"]])
    low, high = float(fits.min()), float(fits.max())
    axes = charts.x_axis("fit to the own subject"), charts.y_axis("fit to the best other subject")
    marks = charts.levels("kind", {kinds[0]: 0, kinds[1]: 1})
    chart = charts.sized(charts.diagonal(low, high), charts.points(rows, axes, marks))
    caption = "Samples above the line fit another subject better than their own."
    return Figure("fit", "Fit of samples to subjects", chart, caption)
