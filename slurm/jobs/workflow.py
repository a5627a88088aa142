"""Workflows: pretrain unless an encoder is given, fine-tune every fold, evaluate and predict, each
after another.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from containers.lib.errors import InputError, raise_if_any
from slurm.jobs.job import Job, make_job
from slurm.jobs.options import Options, expand_home, option_problems, parse_options
from slurm.jobs.request import Request, Share
from slurm.jobs.site import Site

# A fold names a folder. The same pattern stands in aam/data.
FOLD = re.compile(r"(?!\.)[\w.,+=-]([\w.,+= -]{0,98}[\w.,+=-])?")
ENCODER = "--pretrained-encoder"
SECTIONS = ("pretrain", "train", "evaluate", "predict")
# Options that belong to the workflow and not to a section.
WORKFLOW_OPTIONS = ("--cv", "--output-dir", "--output")
EXPECTED = "expected -- OPTIONS OF ALL pretrain: ... train: ... evaluate: ... predict: ..."
# The common options that evaluate and predict take; pretrain and train take all.
COMMON_OPTIONS = {
    "evaluate": ("--metadata", "--group-column", "--batch-column"),
    "predict": ("--sequences", "--trim", "--threads", "--device", "--seed"),
}
# Concatenates the held-out predictions of all folds; every sample is held out once.
JOIN_FOLDS = """\
prepare() {
    local path first=
    for path in "$WORK"/in/predictions/*/predictions.tsv; do
        if [ -z "$first" ]; then first=$path; cat "$path"
        elif [ "$(head -n 1 "$path")" = "$(head -n 1 "$first")" ]; then tail -n +2 "$path"
        else fail 1 "evaluate: $path has other columns than $first"; fi
    done >"$WORK/in/joined.tsv"
}"""


@dataclass(frozen=True)
class Node:
    """A job of a workflow, and the names of the jobs that it waits for."""

    name: str
    job: Job
    after: tuple[str, ...]


def split_sections(words: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the words of each section; those before the first section have an empty name.

    Raises
    ------
    InputError
        Unknown or repeated sections, and options of the whole workflow inside a section.
    """
    words_of: dict[str, list[str]] = {"": []}
    section = ""
    problems: list[str] = []
    for word in words:
        if not re.fullmatch(r"[A-Za-z_-]+:", word):
            if section and word.partition("=")[0].replace("_", "-") in WORKFLOW_OPTIONS:
                where = "belongs before the first section, for the whole workflow"
                problems.append(f"{section}: {word}: {where}")
            words_of[section].append(word)
        elif word[:-1] not in SECTIONS or word[:-1] in words_of:
            problem = "is there twice" if word[:-1] in words_of else f"is not a section; {EXPECTED}"
            problems.append(f"{word} {problem} (a value that ends with a colon: --option={word})")
        else:
            section = word[:-1]
            words_of[section] = []
    raise_if_any(problems)
    return words_of


def read_folds(metadata: Path, column: str) -> tuple[str, ...]:
    """Return the values of a metadata column, in the order of aam."""
    try:
        with metadata.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file, delimiter="\t") if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"--metadata: {metadata}: {error}") from error
    rows = [row for i, row in enumerate(rows) if i == 0 or not row[0].startswith("#")]
    names = [name.strip() for name in rows[0]] if rows else []
    if column not in names:
        raise InputError(f"--cv {column}: {metadata} has no such column")
    index = names.index(column)
    folds = sorted({row[index].strip() for row in rows[1:] if len(row) > index} - {""})
    if len(folds) < 2 or not all(FOLD.fullmatch(fold) for fold in folds):
        expected = "expected two or more short plain names"
        raise InputError(f"--cv {column}: {folds[:5]} cannot be folds; {expected}")
    return tuple(folds)


def to_words(options: Options) -> tuple[str, ...]:
    """Return options as words of a command line."""
    return tuple(word for name, values in options for word in (name, *values))


@dataclass(frozen=True)
class Plan:
    """The parts of a workflow that its jobs share."""

    request: Request
    site: Site
    sections: dict[str, list[str]]
    common: Options  # options before the first section, without those of the workflow
    column: str
    folds: tuple[str, ...]
    out: str
    folder: Path  # `out` on shared storage

    def job(self, name: str, words: tuple[str, ...], **changes: object) -> Job:
        """Return one job of the workflow."""
        request = replace(self.request, promised=(self.folder,), job=name, words=words)
        return make_job(replace(request, **changes), self.site)  # type: ignore[arg-type]

    def words(self, section: str) -> tuple[str, ...]:
        """Return the common options that a section takes, and its own."""
        taken = COMMON_OPTIONS.get(section)
        common = [(name, values) for name, values in self.common if taken is None or name in taken]
        return (*to_words(common), *self.sections.get(section, []))


def make_plan(request: Request, site: Site) -> Plan:
    """Check the options of the whole workflow and read the folds."""
    sections = split_sections(request.words)
    encoders = [word for word in sections.get("train", ()) if word.startswith(ENCODER)]
    if "pretrain" in sections and encoders:
        wrong = f"{ENCODER} names an encoder already; leave one of them out"
        raise InputError(f"pretrain: train: {wrong}")
    options = parse_options(sections[""])
    values_of = {name: values for name, values in options if values}
    needed = ("--cv", "--metadata", "--output-dir")
    if not set(needed) <= values_of.keys():
        wrong = f"--cv COLUMN, --metadata and --output-dir are needed; {EXPECTED}"
        raise InputError(f"workflow: {wrong}")
    types = dict.fromkeys(needed, "one")
    checked = [option for option in options if option[0] in (*WORKFLOW_OPTIONS, "--metadata")]
    raise_if_any(option_problems(checked, types, "a workflow"))
    column = values_of["--cv"][0]
    out = values_of["--output-dir"][0]
    return Plan(
        request=request,
        site=site,
        sections=sections,
        common=[(name, values) for name, values in options if name not in ("--cv", "--output-dir")],
        column=column,
        folds=read_folds(request.data.absolute() / expand_home(values_of["--metadata"][0]), column),
        out=out,
        folder=Path(site.path("shared", request.user)) / out,
    )


def evaluate_job(plan: Plan) -> Job:
    """Return the job that evaluates the held-out predictions of all folds together."""
    tables = [f"{plan.folder}/tune/fold-{fold}/predictions.tsv" for fold in plan.folds]
    out = ("--output-dir", f"{plan.out}/evaluation")
    words = ("--predictions", *tables, *plan.words("evaluate"), *out)
    job = plan.job("evaluate", words, prepare=JOIN_FOLDS, nodes=1, devices=1)
    first = job.command.index("--predictions") + 1
    job.command[first : first + len(tables)] = ["in/joined.tsv"]
    return job


def workflow(request: Request, site: Site) -> Iterator[Node]:
    """Yield the jobs of a workflow, each after those it waits for.

    Raises
    ------
    InputError
        An option that one of the jobs needs is missing or wrong.
    """
    plan = make_plan(request, site)

    encoder: tuple[str, ...] = ()
    if ENCODER not in dict(parse_options(plan.words("train"))):
        words = (*plan.words("pretrain"), "--cv", plan.column, "--output-dir", f"{plan.out}/pre")
        yield Node("pretrain", plan.job("pretrain_node", words), ())
        encoder = (ENCODER, f"{plan.folder}/pre")

    words = (*plan.words("train"), *encoder, "--output-dir", f"{plan.out}/tune")
    folds = Share("fold", "--test-fold", plan.folds, ("--split-column", plan.column))
    after = ("pretrain",) if encoder else ()
    yield Node("train", plan.job("train", words, share=folds), after)

    yield Node("evaluate", evaluate_job(plan), ("train",))

    if "--table" in dict(parse_options(plan.sections.get("predict", []))):
        models = [f"{plan.folder}/tune/fold-{fold}/model" for fold in plan.folds]
        out = ("--output", f"{plan.out}/predictions.tsv")
        words = (*plan.words("predict"), "--model", *models, *out)
        yield Node("predict", plan.job("predict", words, nodes=1, devices=1), ("evaluate",))


def graph(nodes: list[Node]) -> str:
    """Return a text that shows which job waits for which."""
    lines = []
    for node in nodes:
        values = node.job.request.share.values if node.job.request.share else ()
        folds = f" x {len(values)} folds ({', '.join(values)})" if values else ""
        after = f"   after {', '.join(node.after)}" if node.after else ""
        lines.append(f"{node.name}{folds}: {node.job.kind.title}{after}")
        lines.append(f"    -> {node.job.out / node.job.file}")
    return "\n".join(lines)
