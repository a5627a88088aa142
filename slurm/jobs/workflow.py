"""Workflows: pretrain, fine-tune every fold, evaluate, predict, each after what it needs."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from parts.whole import InputError, refuse

from jobs.job import Job, Request, make_job
from jobs.options import Options, expanded, grouped, wrong_options
from jobs.site import Site

# The same as of a fold's folder in aam.
FOLD = re.compile(r"(?!\.)[\w.,+=-]([\w.,+= -]{0,98}[\w.,+=-])?")
SECTIONS = ("pretrain", "train", "evaluate", "predict")
# Options of the whole workflow.
WHOLE = ("--cv", "--output-dir", "--output")
EXPECTED = "expected -- OPTIONS OF ALL pretrain: ... train: ... evaluate: ... predict: ..."
# Which of the common options the last two take.
SHARED = {
    "evaluate": ("--metadata", "--group-column", "--batch-column"),
    "predict": ("--sequences", "--trim", "--threads", "--device", "--seed"),
}
# The held-out predictions of the folds, one under the other; every sample is held out once.
JOIN = """\
join_folds() {
    local path first=
    for path in "$WORK"/in/predictions/*/predictions.tsv; do
        if [ -z "$first" ]; then first=$path; cat "$path"
        elif [ "$(head -n 1 "$path")" = "$(head -n 1 "$first")" ]; then tail -n +2 "$path"
        else say "evaluate: $path has other columns than $first" >&2; return 1; fi
    done >"$WORK/in/joined.tsv"
}
join_folds || fail 1 "evaluate: the folds cannot be joined\""""


@dataclass(frozen=True)
class Node:
    """A job of a workflow and the names of those it waits for."""

    name: str
    job: Job
    after: tuple[str, ...]


def sections(words: tuple[str, ...]) -> dict[str, list[str]]:
    """Words before the first ``pretrain:``, ``train:``, ... under an empty name, the others under theirs.

    Raises
    ------
    InputError
        Sections that are none or there twice, and options in one that all of them share.
    """
    found: dict[str, list[str]] = {"": []}
    current, problems = "", list[str]()
    for word in words:
        if not re.fullmatch(r"[A-Za-z_-]+:", word):
            if current and word.partition("=")[0].replace("_", "-") in WHOLE:
                problems.append(f"{current}: {word}: a workflow has one, before the first section")
            found[current].append(word)
        elif word[:-1] not in SECTIONS or word[:-1] in found:
            known = "is there twice" if word[:-1] in found else f"is no section; {EXPECTED}"
            problems.append(f"{word} {known} (a value that ends with a colon: --option={word})")
        else:
            current = word[:-1]
            found[current] = []
    refuse(problems)
    return found


def folds_of(metadata: Path, column: str) -> tuple[str, ...]:
    """The values of a metadata column, in the order in which aam takes them."""
    try:
        with metadata.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file, delimiter="\t") if row and any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"--metadata: {metadata}: {error}") from error
    rows = [row for i, row in enumerate(rows) if i == 0 or not row[0].startswith("#")]
    if not rows or column not in (names := [name.strip() for name in rows[0]]):
        raise InputError(f"--cv {column}: {metadata} has no such column")
    at = names.index(column)
    found = sorted({row[at].strip() for row in rows[1:] if len(row) > at and row[at].strip()})
    unsafe = [fold for fold in found if not FOLD.fullmatch(fold)]
    if len(found) < 2 or unsafe:
        raise InputError(f"--cv {column}: {found[:5]} cannot be folds; expected two or more short plain names")
    return tuple(found)


def flat(options: Options) -> tuple[str, ...]:
    """Options as words."""
    return tuple(word for name, values in options for word in (name, *values))


def workflow(request: Request, site: Site) -> Iterator[Node]:
    """The jobs of a workflow, each after those it waits for.

    Raises
    ------
    InputError
        An option that one of them needs is missing or wrong.
    """
    parts = sections(request.words)
    common = grouped(parts[""])
    given = {name: values for name, values in common if values}
    if not {"--cv", "--metadata", "--output-dir"} <= given.keys():
        raise InputError(f"workflow: --cv COLUMN, --metadata and --output-dir are needed; {EXPECTED}")
    known = dict.fromkeys(("--cv", "--metadata", "--output-dir"), "str")
    refuse(wrong_options([each for each in common if each[0] in (*WHOLE, "--metadata")], known, "a workflow"))
    column, out = given["--cv"][0], given["--output-dir"][0]
    folds = folds_of((request.data.absolute() / expanded(given["--metadata"][0])), column)
    rest = [(name, values) for name, values in common if name not in ("--cv", "--output-dir")]
    vast = Path(site.place("vast", request.user))
    whole = vast / out
    ask = replace(request, promised=(whole,), folds=(), after=())

    def shared(section: str) -> tuple[str, ...]:
        chosen = [(name, values) for name, values in rest if name in SHARED[section]]
        return (*flat(chosen), *parts.get(section, []))

    words = (*flat(rest), "--cv", column, *parts.get("pretrain", []), "--output-dir", f"{out}/pre")
    yield Node("pretrain", make_job(replace(ask, job="pretrain_node", words=words), site), ())

    words = (*flat(rest), *parts.get("train", []), "--pretrained-encoder", f"{whole}/pre")
    words = (*words, "--output-dir", f"{out}/tune")
    ask = replace(ask, after=("pretrain",))
    job = make_job(replace(ask, job="train", words=words, folds=folds, fold_column=column, devices=1), site)
    yield Node("train", job, ("pretrain",))

    tables = [f"{whole}/tune/fold-{fold}/predictions.tsv" for fold in folds]
    words = ("--predictions", *tables, *shared("evaluate"), "--output-dir", f"{out}/evaluation")
    job = make_job(replace(ask, job="evaluate", words=words, prepare=JOIN, nodes=1, devices=1), site)
    at = job.command.index("--predictions")
    job.command[at + 1 : at + 1 + len(tables)] = ["in/joined.tsv"]
    yield Node("evaluate", job, ("train",))

    if not any(name == "--table" for name, _ in grouped(parts.get("predict", []))):
        return
    models = [f"{whole}/tune/fold-{fold}/model" for fold in folds]
    words = (*shared("predict"), "--model", *models, "--output", f"{out}/predictions.tsv")
    job = make_job(replace(ask, job="predict", words=words, nodes=1, devices=1), site)
    yield Node("predict", job, ("evaluate",))


def graph(nodes: list[Node]) -> str:
    """What waits for what, to read."""
    lines = []
    for node in nodes:
        many = f" x {len(node.job.folds)} folds ({', '.join(node.job.folds)})" if node.job.folds else ""
        after = f"   after {', '.join(node.after)}" if node.after else ""
        lines.append(f"{node.name}{many}: {node.job.title}{after}\n    -> {node.job.out / node.job.file}")
    return "\n".join(lines)
