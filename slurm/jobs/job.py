"""One job: what was asked for, resolved to absolute paths and sizes, and everything that SLURM does not check."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from parts.git import revision
from parts.whole import ROOT, InputError, refuse

from jobs.options import FOLDERS, INPUTS, OUTPUTS, Options, expanded, grouped, options_of, wrong_options
from jobs.site import Site


@dataclass(frozen=True)
class Kind:
    """What a name of a job means."""

    title: str
    command: str = ""  # of aam
    nodes: int = 1
    devices: int = 0  # tasks on a node; 0: as many as it has devices
    needs: tuple[str, ...] = ("--table",)
    resumes: bool = True
    template: str = "run.sh"
    usage: str = ""


KINDS = {
    "pretrain_single": Kind("pretraining on one device", "pretrain", devices=1, usage="TABLE=table.biom TREE=tree.nwk"),
    "pretrain_node": Kind("pretraining on a node", "pretrain", usage="TABLE=table.biom TREE=tree.nwk"),
    "pretrain_multi": Kind("pretraining on nodes", "pretrain", 2, usage="TABLE=table.biom TREE=tree.nwk NODES=2"),
    "train": Kind(
        "fine-tuning on one device",
        "train",
        devices=1,
        needs=("--table", "--metadata", "--metadata-column"),
        usage="TABLE=table.biom METADATA=metadata.tsv COLUMN=age MODEL=pre/model",
    ),
    "predict": Kind(
        "predicting samples", "predict", 1, 1, ("--table", "--model"), False, usage="TABLE=new.biom MODEL=tune/model"
    ),
    "evaluate": Kind("evaluation", "evaluate", 1, 1, ("--metadata",), False),
    "stage": Kind("copying inputs to VAST", "", 1, 1, (), False, "stage.sh", usage="TABLE=table.biom TREE=tree.nwk"),
    "ci_rocm": Kind("tests, doctor and benchmark on a GPU node", "", 1, 1, (), False, "ci_rocm.sh"),
    "profile_rocm": Kind("profiles on a GPU node", "", 1, 1, (), False, "profile_rocm.sh"),
}


@dataclass(frozen=True)
class Input:
    """Something a job reads: where it is, where it lies on a node's disk below in/, how many bytes."""

    path: Path
    place: str
    size: int | None  # none: not there yet


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line, beside the site."""

    job: str
    words: tuple[str, ...] = ()
    data: Path = field(default_factory=Path.cwd)
    nodes: int | None = None
    devices: int | None = None
    time: str = ""
    written_by: str = ""
    fold_column: str = ""
    folds: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    promised: tuple[Path, ...] = ()  # folders that an earlier job writes
    prepare: str = ""
    user: str = ""
    python: str = ""
    root: Path = ROOT
    check: bool = True  # examples name files that are nowhere


@dataclass(frozen=True)
class Job:
    """A job that can be written down."""

    name: str
    title: str
    template: str
    site: Site
    user: str
    root: Path
    python: str
    python_inside: str
    commit: str
    image: Path | None
    carried: tuple[Path, ...]
    enter: tuple[str, ...]
    command: list[str]
    inputs: tuple[Input, ...]
    out: Path
    file: str
    logs: Path
    nodes: int
    tasks: int
    seconds: int
    warning: int
    state_bytes: int
    reserve: int
    folds: tuple[str, ...]
    fold_column: str
    after: tuple[str, ...]
    prepare: str
    written_by: str


def seconds_of(time: str) -> int:
    """SLURM's ways to write a time: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    found = re.fullmatch(r"(?:(\d{1,7})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?", time)
    if not found:
        raise InputError(f"--time {time}: expected HH:MM:SS or D-HH:MM:SS")
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] is not None:
        return days * 86400 + first * 3600 + second * 60 + third
    if found[4] is not None:
        return first * 3600 + second * 60 + third
    return first * 60 + second


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def commit_of(root: Path) -> str:
    """The git commit of a checkout, read from its files where there is no git."""
    known, dirty = revision()
    if known != "unknown":
        return known + ("+" if dirty else "")
    with contextlib.suppress(OSError):
        folder = root / ".git"
        if folder.is_file():
            folder = root / folder.read_text().removeprefix("gitdir:").strip()
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name, common = head.removeprefix("ref: "), folder
        if (folder / "commondir").exists():
            common = folder / (folder / "commondir").read_text().strip()
        if (common / name).exists():
            return (common / name).read_text().strip()
        packed = (common / "packed-refs").read_text().splitlines()
        return next(line.split()[0] for line in packed if line.endswith(f" {name}"))
    return "unknown"


def inputs_of(options: Options, request: Request, problems: list[str]) -> list[Input]:
    """Everything the options name that a job reads; the options then name the places on a node's disk."""
    found = []
    for name, values in options:
        if name not in INPUTS:
            continue
        for i, value in enumerate(values):
            if not value:
                problems.append(f"{name}: is empty, expected a path")
                continue
            path = Path(os.path.normpath(request.data.absolute() / expanded(value)))
            place = f"{name[2:]}/{f'{i}/' * (len(values) > 1)}{path.name}"
            promised = not request.check or any(path.is_relative_to(each) for each in request.promised)
            wanted, other = ("folder", "file") if name in FOLDERS else ("file", "folder")
            readable = not promised and os.access(path, os.R_OK)
            if not promised and not readable:
                problems.append(f"{name} {value}: {path} is missing or may not be read")
            elif readable and path.is_dir() != (wanted == "folder"):
                problems.append(f"{name} {value}: {path} is a {other}, expected a {wanted}")
                continue
            found.append(Input(path, place, size_of(path) if request.check and path.exists() else None))
            values[i] = f"in/{place}"
    return found


def output_of(kind: Kind, options: Options, request: Request, site: Site, problems: list[str]) -> tuple[Path, str]:
    """Where a job writes on VAST: a folder, and the name in it where it writes one thing only."""
    vast = Path(site.place("vast", request.user))
    given = [values[0] for name, values in options if name in OUTPUTS and values]
    stems = [Path(values[0]).stem for name, values in options if name == "--table" and values]
    named = expanded(given[-1] if given else f"aam/{request.job}{''.join(f'-{stem}' for stem in stems)}")
    out = Path(os.path.normpath(vast / named))
    if not out.is_relative_to(vast):
        problems.append(f"--output-dir {named}: {out} is not below {vast}, which every node reaches")
    if kind.resumes or not kind.command:
        if request.check and kind.command and not request.folds and not fresh_or_run(out):
            problems.append(f"--output-dir: {out} holds files, none of them of aam; choose another OUT")
        return out, ""
    if kind.command == "predict" and not out.suffix:
        out = out / "predictions.tsv"
    if request.check and out.exists():
        problems.append(f"{out}: is there already; remove it, or choose another OUT")
    return out.parent, out.name


def fresh_or_run(out: Path) -> bool:
    """Whether a folder is not there, empty but for logs, or a run."""
    if not out.exists():
        return True
    return out.is_dir() and ((out / "run.json").exists() or {each.name for each in out.iterdir()} <= {"slurm"})


def state_size(options: Options, out: Path) -> int:
    """Bytes of a checkpoint: of the newest one that is there, else estimated from the sizes of the network."""
    there = sorted(out.glob("**/checkpoints/step-*"), key=lambda path: path.stat().st_mtime)
    if there:
        return size_of(there[-1])
    given = {name: values[0] for name, values in options if values}
    with contextlib.suppress(ValueError):
        sizes = int(given.get("--embedding-dim", 96)), int(given.get("--attention-layers", 2))
        # What cannot be is for aam to refuse.
        width, layers = (min(max(size, 1), 100_000) for size in sizes)
        # Two encoders of 12 D^2 a layer, their ends; weights, best weights, averages and two moments in float32.
        return 20 * (24 * layers * width**2 + 200 * width**2)
    return 0


def warning_before(state: int, rate: float, seconds: int) -> int:
    """Seconds before the time limit at which a job is warned."""
    wanted = 60 * math.ceil((240 + 3 * state / (rate * 1e6)) / 60)
    return min(wanted, seconds // 2)


def image_of(site: Site, request: Request, problems: list[str]) -> tuple[Path | None, tuple[Path, ...], str]:
    """The image, what of it is copied to each node, and the Python that runs aam where there is no image."""
    if site.engine == "none":
        inside = os.environ.get("AAM_PYTHON") or str(request.root / ".venv/bin/python")
        if request.check and not os.access(inside, os.X_OK):
            problems.append(f"ENGINE=none: {inside} is missing; make setup makes it, or name a Python by AAM_PYTHON")
        return None, (), inside
    image = Path(os.path.normpath(request.root / expanded(site.image))) if site.image else Path("unset")
    # The nightly checks build theirs.
    if request.check and request.job != "ci_rocm" and not image.is_file():
        problems.append(f"--image: {image} is missing; make container-rocm or container-cuda builds one (IMAGE=PATH)")
    home = Path(site.place("home", request.user)) if site.home else None
    if home is None or not image.is_relative_to(home):
        return image, (), ""
    beside = (image.with_name(image.name + ".json"), image.with_suffix(".squashfs"))
    return image, (image, *(path for path in beside if path.is_file())), ""


def names_are_safe(logs: Path, problems: list[str]) -> None:
    """An #SBATCH line cannot hold every name; everything else of a script can."""
    if re.search(r"[\x00-\x1f\x7f\"'\\%$`]", str(logs)):
        problems.append(
            f"{str(logs)!r}: SLURM writes no log into a folder with quotes, %, $ or newlines in its name;"
            " choose another by --output-dir (OUT of make)"
        )


def enough_room(site: Site, request: Request, need: int, problems: list[str]) -> None:
    """Refuse when VAST is as good as full, or not there."""
    vast = Path(site.place("vast", request.user))
    if not vast.is_dir():
        problems.append(f"vast: {vast} is no folder here; is this a login node of {site.title}?")
    elif (free := shutil.disk_usage(vast).free) < need:
        problems.append(f"vast: {vast} has {free / 1e9:.1f} GB free, {need / 1e9:.1f} GB are needed")


def limits(site: Site, nodes: int, tasks: int, seconds: int, problems: list[str]) -> None:
    """What `sbatch --test-only` lets through."""
    problems += [f"{n} {x}: expected 1 or more" for n, x in (("--nodes", nodes), ("--devices", tasks)) if x < 1]
    if site.max_nodes and nodes > site.max_nodes:
        problems.append(f"--nodes {nodes}: {site.title} gives a job at most {site.max_nodes}")
    if site.max_hours and seconds > site.max_hours * 3600:
        problems.append(f"--time: {seconds / 3600:g} h is more than the {site.max_hours:g} h that {site.title} allows")
    if seconds < 120:
        problems.append(f"--time: {seconds} s leaves no time for a checkpoint; expected 2 minutes or more")
    if tasks > site.devices_per_node:
        problems.append(f"--devices {tasks}: a node has {site.devices_per_node}")


def needed(kind: Kind, options: Options, request: Request, problems: list[str]) -> None:
    """Say which inputs are missing, with the whole command, and which options are none."""
    there = {name for name, values in options if values}
    for name in kind.needs:
        if name not in there and "--config" not in there:
            target = request.job.replace("_", "-")
            problems.append(f"{name}: is not given; for example: make {target} {kind.usage}".rstrip())
    if kind.template == "stage.sh" and not there & set(INPUTS):
        problems.append(f"stage: nothing to copy is given; for example: make stage {kind.usage}")
    whose = f"aam {kind.command}" if kind.command else request.job
    # The predictions of many folds are joined before they are read.
    joined = {"--predictions": "tuple"} if request.prepare else {}
    problems += wrong_options(options, options_of(kind.command, kind.template) | joined, whose)


def command_of(kind: Kind, options: Options, site: Site, inside: str, tasks: int, file: str) -> list[str]:
    """What is run on each device, with places of a node's disk for paths."""
    if not kind.command:
        return []
    given = {name for name, _ in options}
    words = [*([inside, "-m", "aam"] if inside else ["aam"]), kind.command]
    for name, values in options:
        words += [] if name in OUTPUTS else [name, *values]
    words += ["--threads", str(site.threads)] if site.threads and "--threads" not in given else []
    words += ["--distributed"] if tasks > 1 else []
    if kind.resumes:
        return [*words, "--output-dir", "run", "--resume-from", "auto"]
    return [*words, "--output" if kind.command == "predict" else "--output-dir", f"run/{file}"]


def make_job(request: Request, site: Site) -> Job:
    """Resolve and check a request.

    Raises
    ------
    InputError
        All that is wrong with it.
    """
    kind, problems = KINDS[request.job], list[str]()
    options = grouped(request.words)
    needed(kind, options, request, problems)
    out, file = output_of(kind, options, request, site, problems)
    inputs = inputs_of(options, request, problems)
    paths = sorted({each.path for each in inputs})
    if kind.template == "stage.sh" and len({path.name for path in paths}) < len(paths):
        problems.append(f"stage: inputs of one name would replace each other: {', '.join(map(str, paths))}")
    nodes = kind.nodes if request.nodes is None else request.nodes
    tasks = (kind.devices or site.devices_per_node) if request.devices is None else request.devices
    seconds = round(site.hours * 3600)
    try:
        seconds = seconds_of(request.time) if request.time else seconds
    except InputError as error:
        problems += error.problems
    limits(site, nodes, tasks, seconds, problems)
    image, carried, inside = image_of(site, request, problems)
    logs = out / "slurm"
    names_are_safe(logs, problems)
    state = state_size(options, out) if kind.resumes else 0
    if request.check:
        enough_room(site, request, 4 * state + 2**30, problems)
    refuse(problems)
    path = ("--env", f"PYTHONPATH={request.root}")
    return Job(
        name=request.job, title=kind.title, template=kind.template, site=site, user=request.user, root=request.root,
        python=request.python, python_inside=inside, commit=commit_of(request.root) if request.check else "0" * 40,
        image=image, carried=carried, enter=("--engine", site.engine, *(path if inside else ()), *site.enter),
        command=command_of(kind, options, site, inside, nodes * tasks, file), inputs=tuple(inputs),
        out=out, file=file, logs=logs, nodes=nodes, tasks=tasks, seconds=seconds,
        warning=warning_before(state, site.vast_mb_per_second, seconds), state_bytes=state, reserve=8 * state + 2**30,
        folds=request.folds, fold_column=request.fold_column, after=request.after, prepare=request.prepare,
        written_by=request.written_by,
    )  # fmt: skip
