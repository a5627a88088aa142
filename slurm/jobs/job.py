"""One job: a request with absolute paths, sizes and limits."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from aam.config import NO_TREE
from aam.encoders import PACKAGES
from containers.lib.errors import raise_if_any
from containers.lib.files import IS_INSTALLED, OUTPUT
from containers.lib.git import commit_label
from containers.lib.sidecar import sidecar_path
from slurm.jobs.checks import (
    PLACEHOLDERS,
    add_placeholders,
    check_free_space,
    check_limits,
    check_log_folder,
    check_options,
    is_new_or_run,
    requested_seconds,
)
from slurm.jobs.options import INPUT_FOLDERS, INPUTS, OUTPUTS, Options, expand_home, parse_options
from slurm.jobs.request import KINDS, Array, Kind, Request
from slurm.jobs.site import Site

GIB = 2**30
# Commands that write one file, and its name where the caller names a folder.
FILES = {"predict": "predictions.tsv", "unifrac": "unifrac.h5", "doctor": "ranks.json"}
# Jobs of one run, each of which waits for the one before: more are a mistake in typing.
LONGEST_CHAIN = 1000
# The network where no option says otherwise, as in aam/config.py.
DEFAULT_WIDTH = 96
DEFAULT_LAYERS = 2


@dataclass(frozen=True)
class Input:
    """A file or folder that a job reads."""

    path: Path
    target: str  # on the local disk of a node, relative to in/
    size: int | None  # bytes; None: does not exist yet


@dataclass(frozen=True)
class Job:
    """Everything that the script of a job needs."""

    name: str
    title: str
    template: str
    site: Site
    user: str
    root: Path
    python: str
    python_inside: str  # runs aam where there is no image
    commit: str
    image: Path | None
    image_files: tuple[Path, ...]  # copied to each node
    enter: tuple[str, ...]  # options of containers/run
    command: list[str]
    inputs: tuple[Input, ...]
    out: Path
    file: str  # in `out`, where the job writes one file only
    logs: Path
    nodes: int
    tasks: int
    seconds: int
    warning: int  # seconds before the time limit
    state_bytes: int  # of a checkpoint
    reserve: int  # bytes of a local disk for what the job writes
    array: Array | None
    prepare: str
    stripes: int
    written_by: str
    warnings: tuple[str, ...]  # what a dry run found missing


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def resolve_inputs(
    options: Options, request: Request, problems: list[str], absences: list[str]
) -> list[Input]:
    """Return everything that the job reads, and replace the values of `options` by paths on a
    node's disk.
    """
    inputs = []
    for name, values in options:
        if name not in INPUTS:
            continue
        for i, value in enumerate(values):
            if not value:
                problems.append(f"{name}: is empty, expected a path")
                continue
            path = Path(os.path.normpath(request.data.absolute() / expand_home(value)))
            is_shipped = name in INPUT_FOLDERS and value in PACKAGES and not path.exists()
            if is_shipped or (name, value) == ("--tree", NO_TREE):
                continue
            target = f"{name[2:]}/{f'{i}/' * (len(values) > 1)}{path.name}"
            expected, other = ("folder", "file") if name in INPUT_FOLDERS else ("file", "folder")
            is_promised = not request.check or any(
                path.is_relative_to(folder) for folder in request.promised
            )
            is_readable = not is_promised and os.access(path, os.R_OK)
            if request.placeholders and value in PLACEHOLDERS.values() and not is_readable:
                pass  # named already
            elif not is_promised and not is_readable:
                absences.append(f"{name} {value}: {path} is missing or may not be read")
            elif is_readable and path.is_dir() != (expected == "folder"):
                problems.append(f"{name} {value}: {path} is a {other}, expected a {expected}")
                continue
            inputs.append(
                Input(path, target, size_of(path) if request.check and path.exists() else None)
            )
            values[i] = f"in/{target}"
    return inputs


def check_staged_names(inputs: list[Input], problems: list[str]) -> None:
    """Check that no two inputs that are copied into one folder have the same name."""
    paths = sorted({staged.path for staged in inputs})
    if len({path.name for path in paths}) < len(paths):
        problems.append(
            f"stage: inputs of one name would replace each other: {', '.join(map(str, paths))}"
        )


def resolve_output(
    kind: Kind, options: Options, request: Request, site: Site, problems: list[str]
) -> tuple[Path, str]:
    """Return the folder on shared storage that a job writes, and the name of the file if it writes
    only one.
    """
    shared = Path(site.path("shared", request.user))
    outputs = [values[0] for name, values in options if name in OUTPUTS and values]
    tables = [Path(values[0]).stem for name, values in options if name == "--table" and values]
    requested = expand_home(outputs[-1] if outputs else "-".join([f"aam/{request.job}", *tables]))
    out = Path(os.path.normpath(shared / requested))
    if not out.is_relative_to(shared):
        problems.append(
            f"--output-dir {requested}: {out} is not below {shared}, which all nodes see"
        )
    if kind.resumes or not kind.command:
        if request.check and kind.command and not request.array and not is_new_or_run(out):
            problems.append(
                f"--output-dir: {out} holds files, but no run of aam; choose another OUT"
            )
        return out, ""
    if not out.suffix and kind.command in FILES:
        out /= "part.h5" if request.stripes else FILES[kind.command]
    if request.stripes and out.suffix != ".h5":
        problems.append(
            f"--output {requested}: parts of a matrix are .h5 files, later joined by aam unifrac "
            "--merge"
        )
    if request.check and out.exists():
        problems.append(f"{out}: exists already; remove it, or choose another OUT")
    return out.parent, out.name


def checkpoint_size(options: Options, out: Path) -> int:
    """Return the bytes of the newest checkpoint, or else an estimate from the sizes of the
    network.
    """
    checkpoints = sorted(out.glob("**/checkpoints/step-*"), key=lambda path: path.stat().st_mtime)
    if checkpoints:
        return size_of(checkpoints[-1])
    first_values = {name: values[0] for name, values in options if values}
    with contextlib.suppress(ValueError):
        width = int(first_values.get("--embedding-dim", DEFAULT_WIDTH))
        layers = int(first_values.get("--attention-layers", DEFAULT_LAYERS))
        # aam refuses sizes that are out of range.
        width = min(max(width, 1), 100_000)
        layers = min(max(layers, 1), 100_000)
        # Two encoders with 12 D^2 parameters in a layer, and what is around them; in float32 the
        # weights, the best weights, their average and the two states of the optimizer.
        return 20 * (24 * layers * width**2 + 200 * width**2)
    return 0


def warning_seconds(state_bytes: int, mb_per_second: float, seconds: int) -> int:
    """Return how many seconds before its time limit a job is warned."""
    needed = 60 * math.ceil((240 + 3 * state_bytes / (mb_per_second * 1e6)) / 60)
    return min(needed, seconds // 2)


def python_without_image(request: Request, problems: list[str]) -> str:
    """Return the Python that runs aam on a site without containers."""
    default = request.python if IS_INSTALLED else str(request.root / ".venv/bin/python")
    python = os.environ.get("AAM_PYTHON") or default
    if request.check and not os.access(python, os.X_OK):
        problems.append(
            f"ENGINE=none: {python} is missing; make setup makes it, or name a Python by AAM_PYTHON"
        )
    return python


def resolve_image(
    site: Site, request: Request, problems: list[str]
) -> tuple[Path, tuple[Path, ...]]:
    """Return the image, and the files of it that are copied to each node because they lie at
    home.
    """
    root = OUTPUT if IS_INSTALLED else request.root
    image = Path(os.path.normpath(root / expand_home(site.image))) if site.image else Path("unset")
    # ci_rocm builds its own image.
    if request.check and request.job != "ci_rocm" and not image.is_file():
        problems.append(
            f"--image: {image} is missing; make container-rocm or container-cuda builds one "
            "(IMAGE=PATH)"
        )
    home = Path(site.path("home", request.user)) if site.home else None
    if home is None or not image.is_relative_to(home):
        return image, ()
    beside = (image.with_name(image.name + ".json"), image.with_suffix(".squashfs"))
    return image, (image, *(path for path in beside if path.is_file()))


def older_image_problems(image: Path, inputs: list[Input]) -> list[str]:
    """Return the models that a newer aam wrote than the image holds, by the image's sidecar and
    their model.json.
    """

    def version_in(path: Path) -> tuple[int, ...]:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return tuple(
                map(
                    int,
                    re.findall(
                        r"\d+", json.loads(path.read_text(encoding="utf-8")).get("version", "")
                    ),
                )
            )
        return ()

    of_image = version_in(sidecar_path(image))
    descriptions = [
        path
        for read in inputs
        for path in (read.path / "model.json", read.path / "model/model.json")
    ]
    return [
        f"--image: {image} holds aam {'.'.join(map(str, of_image))}, {path.parent} was written "
        "by a newer one,"
        f" {'.'.join(map(str, version_in(path)))}: make container-rocm or container-cuda builds "
        "the image anew"
        for path in descriptions
        if of_image and version_in(path) > of_image
    ]


def aam_command(
    kind: Kind, options: Options, site: Site, python: str, tasks: int, file: str
) -> list[str]:
    """Return the command of each task, with paths on the local disk of a node."""
    if not kind.command:
        return []
    present = {name for name, _ in options}
    words = [*([python, "-m", "aam"] if python else ["aam"]), kind.command]
    for name, values in options:
        words += [] if name in OUTPUTS else [name, *values]
    words += ["--threads", str(site.threads)] if site.threads and "--threads" not in present else []
    words += (["--ranks"] if kind.command == "doctor" else ["--distributed"]) if tasks > 1 else []
    if kind.resumes:
        return [*words, "--output-dir", "run", "--resume-from", "auto"]
    return [*words, "--output" if kind.command in FILES else "--output-dir", f"run/{file}"]


def array_problems(kind: Kind, options: Options, request: Request) -> list[str]:
    """Return what is wrong with the runs of an array, and with the jobs of a chain."""
    problems = []
    if (request.array or request.chain != 1) and not kind.resumes:
        problems.append(
            f"--seeds, --chain: {request.job} has one job; only those that pretrain or train can "
            "have more"
        )
    if not 1 <= request.chain <= LONGEST_CHAIN:
        problems.append(f"--chain {request.chain}: expected 1 to {LONGEST_CHAIN:,} jobs")
    if request.array and request.array.name == "seed":
        seeds = request.array.values
        wrong = [
            seed for seed in seeds if not re.fullmatch("[0-9]{1,10}", seed) or int(seed) >= 2**32
        ]
        if wrong or len(set(seeds)) < len(seeds):
            problems.append(
                f"--seeds {' '.join(seeds)}: expected different whole numbers from 0 to {2**32 - 1}"
            )
        if any(name in ("--seed", "--random-seed") for name, _ in options):
            problems.append("--seed: each run of --seeds has its own; leave one of them out")
        if request.chain > 1:
            problems.append(
                "--chain: waits for one run, --seeds are several; leave one of them out"
            )
    return problems


def make_job(request: Request, site: Site) -> Job:
    """Resolve and check a request.

    Raises
    ------
    InputError
        All problems of the request at once.
    """
    kind = KINDS[request.job]
    problems: list[str] = []
    # A script can be shown on any machine; what is missing there stops a submission only.
    absences: list[str] = []
    options = parse_options(request.words)
    if request.dry_run and request.placeholders:
        add_placeholders(kind, options, absences)
    check_options(kind, options, request, problems)
    if request.stripes and (kind.command != "unifrac" or request.stripes < 1):
        problems.append(
            f"--stripes {request.stripes}: expected 1 or more parts of a matrix, of the job unifrac"
        )
    problems += array_problems(kind, options, request)
    if request.chain > 1:
        site = dataclasses.replace(site, most_requeues=0)
    if request.job == "ci_rocm" and IS_INSTALLED:
        problems.append(
            "ci_rocm: runs the tests of a clone of aam, by its slurm/generate; an installed aam "
            "has none"
        )
    out, file = resolve_output(kind, options, request, site, problems)
    inputs = resolve_inputs(options, request, problems, absences)
    if kind.template == "stage.sh":
        check_staged_names(inputs, problems)
    nodes = kind.nodes if request.nodes is None else request.nodes
    tasks = (kind.devices or site.devices_per_node) if request.devices is None else request.devices
    seconds = requested_seconds(request, site, problems)
    check_limits(site, nodes, tasks, seconds, problems)
    without_image = site.engine == "none"
    python_inside = python_without_image(request, absences) if without_image else ""
    image, image_files = (None, ()) if without_image else resolve_image(site, request, absences)
    absences += older_image_problems(image, inputs) if image else []
    logs = out / "slurm"
    check_log_folder(logs, problems)
    state_bytes = checkpoint_size(options, out) if kind.resumes else 0
    if request.check:
        check_free_space(site, request.user, 4 * state_bytes + GIB, absences)
    raise_if_any([*problems, *absences] if problems or not request.dry_run else [])
    fabric_enter = site.fabric_enter if site.fabric_opt_in and not without_image else ()
    source_path = (
        ("--env", f"PYTHONPATH={request.root}") if without_image and not IS_INSTALLED else ()
    )
    return Job(
        name=request.job,
        title=kind.title,
        template=kind.template,
        site=site,
        user=request.user,
        root=request.root,
        python=request.python,
        python_inside=python_inside,
        commit=commit_label(request.root) if request.check else "0" * 40,
        image=image,
        image_files=image_files,
        enter=("--engine", site.engine, *source_path, *site.enter, *fabric_enter),
        command=aam_command(kind, options, site, python_inside, nodes * tasks, file),
        inputs=tuple(inputs),
        out=out,
        file=file,
        logs=logs,
        nodes=nodes,
        tasks=tasks,
        seconds=seconds,
        warning=warning_seconds(state_bytes, site.shared_mb_per_second, seconds),
        state_bytes=state_bytes,
        reserve=8 * state_bytes + GIB,
        array=request.array,
        prepare=request.prepare,
        stripes=request.stripes,
        written_by=request.written_by,
        warnings=tuple(absences),
    )
