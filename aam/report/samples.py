"""Words and tables of samples that do not fit."""

from __future__ import annotations

import pandas as pd

from aam.predict.mixture import LEAST_TABLE_SAMPLES
from aam.predict.sample_check import SampleCheck, are_of_one_subject
from aam.report.charts import Table, middle_cut, plain_lines

# Rows of a table on a terminal, and characters of an id.
MOST_ROWS, LONGEST_ID = 10, 30

MIXTURES = "Samples that may contain another sample (about 1 in 20 is expected by chance)"
PAIRS = "Pairs that resemble each other like two draws of one sample"
SHIFTS = "Rows that resemble the subject of the row next to them: a possible shift by one row"
SENTENCES = {
    "few samples": (
        f"Fewer than {LEAST_TABLE_SAMPLES} samples have reads: too few to look for mix-ups."
    ),
    "needs subjects": (
        "Samples of this table resemble each other as those of one subject do. To look for samples "
        "that contain another one, name the subjects with --group-column."
    ),
    "no subjects": (
        "No subjects are given, so a sample may be named for another one of its own subject: name "
        "the subjects with --group-column."
    ),
}
ASK = (
    "These are suspicions: ask the laboratory. Relatives, cage mates, replicates and newborns give "
    "the same signs. --exclude FILE leaves samples out."
)
PAIR_TITLES = ("sample", "subject", "time", "nearly the same as", "its subject", "its time")


def _mixtures(check: SampleCheck) -> pd.DataFrame:
    """The samples that may contain another one, the surest first."""
    samples = check.samples[check.samples["mixed"]].sort_values("evidence", ascending=False)
    features = check.mixtures.groupby("sample")["feature"].size()
    frame = samples.drop(columns=["reads", "mixed"]).assign(
        source_reads=samples["source_reads"].map("{:.0f}".format),
        share=samples["share"].map("{:.1%}".format),
        evidence=samples["evidence"].map("{:.0f}".format),
        features=features.reindex(samples.index, fill_value=0),
    )
    titles = {f"source_{name}": f"its {name}" for name in ("subject", "time", "reads")}
    return frame.rename(columns=titles).reset_index(names="sample")


def _table(title: str, frame: pd.DataFrame) -> list[str]:
    """Lines of the first rows of a frame, without columns that are empty."""
    frame = frame.astype(str).loc[:, (frame != "").any()]
    rows = frame.head(MOST_ROWS).map(lambda text: middle_cut(text, LONGEST_ID))
    more = f", the first {MOST_ROWS} (--output writes all)" * (len(frame) > MOST_ROWS)
    return plain_lines(Table(f"{title}: {len(frame)}{more}", rows)) if len(frame) else []


def sample_lines(check: SampleCheck, subjects: str | None = None) -> list[str]:
    """What `aam audit` prints of samples that do not fit; `subjects` is the column of subjects."""
    lines = [] if subjects is None else [f"The subjects are the values of {subjects}."]
    is_same = are_of_one_subject(check.duplicates)
    pairs = check.duplicates[~is_same].set_axis([*PAIR_TITLES], axis=1)
    tables = {MIXTURES: _mixtures(check), PAIRS: pairs, SHIFTS: check.shifts}
    found = [line for title, frame in tables.items() for line in _table(title, frame)]
    limits = [SENTENCES[x] for x in check.limits if found or x != "no subjects"]
    if is_same.any():
        found.append(f"{PAIRS}, of one subject: {is_same.sum()}")
    nothing = [] if limits else ["No sample is suspected to contain another one."]
    return ["Samples that do not fit", *lines, *limits, *(([*found, ASK]) if found else nothing)]
