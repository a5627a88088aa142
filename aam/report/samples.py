"""Words and tables of samples that do not fit."""

from __future__ import annotations

import pandas as pd

from aam.predict.mixture import LEAST_TABLE_SAMPLES
from aam.predict.sample_check import SampleCheck, are_of_one_subject
from aam.report.charts import Table, plain_lines, shortened

# Rows of a table on a terminal, and characters of an id.
MOST_ROWS, LONGEST_ID = 10, 30

# Share of the samples in pairs above which many pairs are one sentence, and share of the median
# number of reads below which a source has few.
MANY, FEW_READS = 0.02, 0.1

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
DRAWS = "resemble each other like two draws of one sample"
ASK = (
    "These are suspicions: ask the laboratory. Relatives, cage mates, replicates and newborns give "
    "the same signs. --exclude FILE leaves samples out."
)


def _table(title: str, frame: pd.DataFrame, kind: str) -> list[str]:
    """Lines of the first rows of a frame of text, without columns that are empty."""
    frame = frame.loc[:, (frame != "").any()]
    rows = frame.head(MOST_ROWS).map(lambda text: shortened(str(text), LONGEST_ID))
    more = f", the first {MOST_ROWS} (--output writes all)" * (len(frame) > MOST_ROWS)
    return plain_lines(Table(f"{title}: {len(frame)}{more}", rows, kind))


def _mixture_lines(check: SampleCheck) -> list[str]:
    samples = check.samples
    mixed = samples[samples["mixed"]].sort_values("evidence", ascending=False)
    if not len(mixed):
        return [] if LIMITS.keys() & set(check.limits) else [NO_MIXTURE]
    features = check.mixtures.groupby("sample")["feature"].size()
    frame = pd.DataFrame(
        {
            "sample": mixed.index,
            "subject": mixed["subject"].to_numpy(),
            "time": mixed["time"].to_numpy(),
            "source": mixed["source"].to_numpy(),
            "its subject": mixed["source_subject"].to_numpy(),
            "its time": mixed["source_time"].to_numpy(),
            "share": [f"{100 * share:.1f} %" for share in mixed["share"]],
            "evidence": [f"{evidence:.0f}" for evidence in mixed["evidence"]],
            "features": [str(features.get(name, 0)) for name in mixed.index],
        }
    )
    lines = [*_table(TITLE, frame, "mixtures"), CHANCE]
    few = mixed[mixed["source_reads"] < FEW_READS * samples["reads"].median()]
    for name, reads in dict(zip(few["source"], few["source_reads"], strict=True)).items():
        lines.append(f"The source {name} has only {reads} reads of its own.")
    return [*lines, *[NO_SUBJECTS] * ("no subjects" in check.limits)]


def _duplicate_lines(check: SampleCheck) -> list[str]:
    pairs, lines = check.duplicates, list[str]()
    is_same = are_of_one_subject(pairs)
    if is_same.any():
        lines.append(f"{is_same.sum()} pairs of samples of one subject {DRAWS}.")
    strange = pairs[~is_same]
    number, total = len({*strange["first"], *strange["second"]}), len(check.samples)
    if number > MANY * total and len(strange) > MOST_ROWS:
        text = f"{number} of {total} samples are in {len(strange)} pairs that {DRAWS}: this table"
        return [*lines, f"{text} has replicates, or a column of subjects is missing."]
    if number:
        names = ("sample", "subject", "time", "nearly the same as", "its subject", "its time")
        lines += _table(f"Pairs that {DRAWS}", strange.set_axis([*names], axis=1), "duplicates")
    return lines


def _shift_lines(check: SampleCheck) -> list[str]:
    lines = list[str]()
    for _, rows in check.shifts.groupby("shift"):
        first, last = (
            f"{row['sample']} (labelled {row['subject']}, resembles {row['resembles']})"
            for row in rows.iloc[[0, -1]].to_dict("records")
        )
        lines.append(
            f"{len(rows)} rows of the sheet resemble the subject of the row next to them, from "
            f"{first} to {last}: a possible shift by one row."
        )
    return lines


def sample_lines(check: SampleCheck, subjects: str | None = None) -> list[str]:
    """What `aam audit` prints of samples that do not fit; `subjects` is the column of subjects."""
    lines = [] if subjects is None else [f"The subjects are the values of {subjects}."]
    lines += [LIMITS[limit] for limit in check.limits if limit in LIMITS]
    suspicions = len(check.duplicates) + len(check.shifts) + int(check.samples["mixed"].sum())
    lines += [*_mixture_lines(check), *_duplicate_lines(check), *_shift_lines(check)]
    return ["Samples that do not fit", *lines, *[ASK] * (suspicions > 0)]
