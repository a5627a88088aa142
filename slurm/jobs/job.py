"""One job: a request with absolute paths, sizes and limits."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from aam.files.atomic import bytes_of
from containers.lib.errors import raise_if_any
from containers.lib.files import IS_INSTALLED, commit_label
from slurm.jobs.image import JobImage, python_without_image, resolve_image
from slurm.jobs.inputs import content_problems, is_promised_to
from slurm.jobs.options import (
    INPUT_FOLDERS,
    INPUTS,
    OUTPUTS,
    PLACEHOLDERS,
    Options,
    add_placeholders,
    check_free_space,
    check_limits,
    check_log_folder,
    check_options,
    expand_home,
    has_network,
    is_new_or_run,
    options_of,
    parse_options,
    requested_seconds,
)
from slurm.jobs.request import KINDS, Kind, Request
from slurm.jobs.site import Site

GIB = 2**30
# Commands that write one file, and its name where the caller names a folder.
FILES = {"predict": "predictions.tsv", "unifrac": "unifrac.h5", "doctor": "ranks.json"}
# Jobs of one run, each of which waits for the one before: more are a mistake in typing.
LONGEST_CHAIN = 1000
# Values of --tree and --pretrained-encoder that are no files.
NO_TREE = "none"
NAME = re.compile(r"[\w-]+")
# Seconds by which SLURM may warn late, and that a trial or a step may take (aam/device/probe.py).
SIGNAL_DELAY, PROBE_SECONDS = 60, 300
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
class Places:
    """Where the tasks of a job run: their devices and CPUs, and what the user should know."""

    tasks: int  # on a node
    device: str  # hip, cuda or cpu
    cpus: int  # of a task; 0: SLURM decides
    threads: int
    partition: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """Everything that the script of a job needs."""

    request: Request
    kind: Kind
    site: Site
    places: Places
    python_inside: str  # runs aam where there is no image
    commit: str
    image: JobImage | None
    command: list[str]
    inputs: tuple[Input, ...]
    out: Path
    file: str  # in `out`, where the job writes one file only
    nodes: int
    seconds: int
    state_bytes: int  # of the checkpoints of all runs of a node
    warnings: tuple[str, ...]  # what a dry run found missing

    @property
    def name(self) -> str:
        """The name of the kind of job."""
        return self.request.job

    @property
    def logs(self) -> Path:
        """The folder of script and log."""
        return self.out / "slurm"

    @property
    def devices(self) -> int:
        """The devices of a node that the job asks for: all of a whole node, else one for each
        task.
        """
        return self.site.devices_per_node if self.site.exclusive else self.places.tasks

    @property
    def gres(self) -> str:
        """The request for devices: that of the site, or for fewer of them."""
        gres = self.site.gres
        all_of_node = self.devices >= self.site.devices_per_node
        return gres if all_of_node else re.sub(r"\d+$", str(self.devices), gres)

    @property
    def each(self) -> str:
        """What a task runs: rank (of one run), seed (its own run), or cv (its folds)."""
        if self.request.seeds:
            return "seed"
        return "cv" if self.kind.command == "train" and self.places.tasks > 1 else "rank"

    @property
    def enter(self) -> list[str]:
        """The options of containers/run."""
        site = self.site
        own = ["--env", f"PYTHONPATH={self.request.root}"]
        words = ["--engine", site.engine]
        words += own if not self.image and not IS_INSTALLED else []
        return [*words, *site.enter, *(word for each in site.env for word in ("--env", each))]

    @property
    def warning(self) -> int:
        """Seconds before the time limit at which the job is warned.

        aam may try its device meanwhile, which it does not interrupt.
        """
        trials = 2 if "--compile-model" in self.command else 1
        copies = 3 * self.state_bytes / (self.site.shared_mb_per_second * 1e6)
        needed = SIGNAL_DELAY + trials * PROBE_SECONDS + copies
        return min(60 * math.ceil(needed / 60), self.seconds // 2)

    @property
    def reserve(self) -> int:
        """Bytes of a local disk for what the job writes."""
        return 8 * self.state_bytes + GIB


def resolve_inputs(
    options: Options, request: Request, problems: list[str], absences: list[str]
) -> list[Input]:
    """Return everything that the job reads, and replace the values of `options` by paths on a
    node's disk.
    """
    problems += content_problems(options, request) if request.check else []
    inputs = []
    for name, values in options:
        if name not in INPUTS:
            continue
        for i, value in enumerate(values):
            if not value:
                problems.append(f"{name}: is empty, expected a path")
                continue
            path = Path(os.path.normpath(request.data.absolute() / expand_home(value)))
            is_name = name == "--pretrained-encoder" and NAME.fullmatch(value)
            if (is_name and not path.exists()) or (name, value) == ("--tree", NO_TREE):
                continue
            target = f"{name[2:]}/{f'{i}/' * (len(values) > 1)}{path.name}"
            expected, other = ("folder", "file") if name in INPUT_FOLDERS else ("file", "folder")
            is_promised = not request.check or is_promised_to(request, name)
            is_readable = not is_promised and os.access(path, os.R_OK)
            is_placeholder = request.dry_run and value in PLACEHOLDERS.values()
            if not (is_promised or is_readable or is_placeholder):  # a placeholder is named already
                absences.append(f"{name} {value}: {path} is missing or may not be read")
            elif is_readable and path.is_dir() != (expected == "folder"):
                problems.append(f"{name} {value}: {path} is a {other}, expected a {expected}")
                continue
            size = bytes_of(path) if request.check and path.exists() else None
            inputs.append(Input(path, target, size))
            values[i] = f"in/{target}"
    return inputs


def check_staged_names(inputs: list[Input], problems: list[str]) -> None:
    """Check that no two inputs that are copied into one folder have the same name."""
    paths = sorted({staged.path for staged in inputs})
    if len({path.name for path in paths}) < len(paths):
        names = ", ".join(map(str, paths))
        problems.append(f"stage: inputs of one name would replace each other: {names}")


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
        where = f"{out} is not below {shared}, which all nodes see"
        problems.append(f"--output-dir {requested}: {where}")
    if kind.resumes or not kind.command:
        if request.check and kind.command and not request.seeds and not is_new_or_run(out):
            wrong = f"{out} holds files, but no run of aam; choose another OUT"
            problems.append(f"--output-dir: {wrong}")
        return out, ""
    if not out.suffix and kind.command in FILES:
        out /= FILES[kind.command]
    if request.check and out.exists():
        problems.append(f"{out}: exists already; remove it, or choose another OUT")
    return out.parent, out.name


def checkpoint_size(options: Options, out: Path) -> int:
    """Return the bytes of the newest checkpoint, or else an estimate from the sizes of the
    network.
    """
    checkpoints = sorted(out.glob("**/checkpoints/step-*"), key=lambda path: path.stat().st_mtime)
    if checkpoints:
        return bytes_of(checkpoints[-1])
    sizes = {"--embedding-dim": DEFAULT_WIDTH, "--attention-layers": DEFAULT_LAYERS}
    for name, values in options:
        if name in sizes and values and re.fullmatch("[0-9]{1,5}", values[0]):
            sizes[name] = int(values[0])  # aam refuses other values
    width, layers = sizes.values()
    # Two encoders with 12 D^2 parameters in a layer, and what is around them; in float32 the
    # weights, the best weights, their average and the two states of the optimizer.
    return 20 * (24 * layers * width**2 + 200 * width**2)


ON_A_NODE = "as one task with the CPUs of a node; AAM_SITE_CPU_PARTITION=NAME names a "
ON_A_NODE += "partition without GPUs"
ONE_DEVICE = "{command} uses one device of the {count} of a whole node"
SHARE = "; the folds of --cv would share all of them"


def choose_places(kind: Kind, options: Options, request: Request, site: Site) -> Places:
    """Return the tasks of a node. A job without GPU gets a CPU partition or all CPUs of a node."""
    device = "cpu" if request.allow_cpu else site.device
    tasks = (kind.devices or site.devices_per_node) if request.devices is None else request.devices
    if request.seeds and request.devices is None:
        nodes = kind.nodes if request.nodes is None else request.nodes
        tasks = min(site.devices_per_node, -(-len(request.seeds) // max(nodes, 1)))
    elif kind.command == "train" and request.devices is None and "--cv" not in dict(options):
        tasks = 1
    uses_gpu = kind.uses_gpu and (kind.command != "train" or has_network(options))
    if uses_gpu or device == "cpu" or request.seeds:
        wastes = site.exclusive and 1 == tasks < site.devices_per_node and device != "cpu"
        remark = ONE_DEVICE.format(command=kind.command, count=site.devices_per_node)
        remark += SHARE if kind.command == "train" else ""
        remarks = (remark,) if wastes and kind.command else ()
        return Places(tasks, device, site.cpus_per_device, site.threads, site.partition, remarks)
    what = "fits a linear model and trees" if kind.command == "train" else "computes on the CPU"
    where = f"in the partition {site.cpu_partition}" if site.cpu_partition else ON_A_NODE
    remarks = (f"{kind.command} {what} and uses no GPU: it runs {where}",) if kind.command else ()
    count = site.devices_per_node if site.exclusive else 1
    cpus, threads = site.cpus_per_device * count, site.threads * count
    return Places(1, "cpu", cpus, threads, site.cpu_partition or site.partition, remarks)


def aam_command(
    kind: Kind, options: Options, site: Site, python: str, places: Places, ranks: int, file: str
) -> list[str]:
    """Return the command of each task, with paths on the local disk of a node.

    Runs that tasks share name their own output.
    """
    if not kind.command:
        return []
    present = {name for name, _ in options}
    known = options_of(kind.command, kind.template)
    words = [*([python, "-m", "aam"] if python else ["aam"]), kind.command]
    for name, values in options:
        words += [] if name in OUTPUTS else [name, *values]
    own: dict[str, int | str] = {"--threads": places.threads}
    if places.device != "cpu":
        own |= {"--num-workers": site.workers, "--device": places.device}
    for name, value in own.items():
        words += [name, str(value)] if value and name in known and name not in present else []
    words += (["--ranks"] if kind.command == "doctor" else ["--distributed"]) if ranks > 1 else []
    if kind.resumes:
        return [*words, "--resume-from", "auto"]
    return [*words, "--output" if kind.command in FILES else "--output-dir", f"run/{file}"]


def seed_problems(kind: Kind, options: Options, request: Request) -> list[str]:
    """List the problems of the seeds that tasks share, and with the jobs of a chain."""
    problems, seeds = [], request.seeds
    if (seeds or request.chain != 1) and not kind.resumes:
        only = "only those that pretrain or train can have more"
        problems.append(f"--seeds, --chain: {request.job} has one job; {only}")
    if not 1 <= request.chain <= LONGEST_CHAIN:
        problems.append(f"--chain {request.chain}: expected 1 to {LONGEST_CHAIN:,} jobs")
    valid = {seed for seed in seeds if re.fullmatch("[0-9]{1,10}", seed) and int(seed) < 2**32}
    if len(valid) < len(seeds):
        expected = f"expected different whole numbers from 0 to {2**32 - 1}"
        problems.append(f"--seeds {' '.join(seeds)}: {expected}")
    if seeds and "--seed" in dict(options):
        problems.append("--seed: each run of --seeds has its own; leave one of them out")
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
    absences = [*site.unset]
    options = parse_options(request.words)
    if request.dry_run:
        add_placeholders(kind, options, absences)
    check_options(kind, options, request, problems)
    problems += seed_problems(kind, options, request)
    if request.chain > 1:
        site = dataclasses.replace(site, most_requeues=0)
    if request.job == "ci_rocm" and IS_INSTALLED:
        problems.append("ci_rocm: runs the tests of a clone of aam, by its slurm/generate")
    out, file = resolve_output(kind, options, request, site, problems)
    inputs = resolve_inputs(options, request, problems, absences)
    if kind.template == "stage.sh":
        check_staged_names(inputs, problems)
    nodes = kind.nodes if request.nodes is None else request.nodes
    places = choose_places(kind, options, request, site)
    seconds = requested_seconds(kind, options, request, site, problems)
    check_limits(site, nodes, places.tasks, seconds, problems)
    without_image = site.engine == "none"
    python_inside = python_without_image(request, absences) if without_image else ""
    image = None if without_image else resolve_image(site, request, absences)
    check_log_folder(out / "slurm", problems)
    runs = places.tasks if request.seeds else 1
    state_bytes = runs * checkpoint_size(options, out) if kind.resumes else 0
    if request.check:
        check_free_space(site, request.user, 4 * state_bytes + GIB, absences)
    raise_if_any([*problems, *absences] if problems or not request.dry_run else [])
    ranks = 1 if request.seeds or kind.command == "train" else nodes * places.tasks
    command = aam_command(kind, options, site, python_inside, places, ranks, file)
    if kind.resumes and not request.seeds:
        command += ["--output-dir", "run"]
    return Job(
        request=request,
        kind=kind,
        site=site,
        places=places,
        python_inside=python_inside,
        commit=commit_label(request.root) if request.check else "0" * 40,
        image=image,
        command=command,
        inputs=tuple(inputs),
        out=out,
        file=file,
        nodes=nodes,
        seconds=seconds,
        state_bytes=state_bytes,
        warnings=tuple(absences),
    )
