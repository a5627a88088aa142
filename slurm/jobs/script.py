"""Job scripts: a template and a few substitutions, where shlex.quote quotes every value; and what a
job costs at most.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from containers.lib.files import ROOT
from slurm.jobs.job import Job
from slurm.jobs.site import Site

TEMPLATES = ROOT / "slurm" / "templates"
LIBRARY = ROOT / "slurm" / "lib.sh"
# Runs with lib.sh of the submission, or else with that of the checkout, if it is the same.
READ_LIBRARY = """\
LIB_SHA256=%s
for LIB in "$OUT/slurm/lib-${LIB_SHA256::12}.sh" "$AAM/slurm/lib.sh" ''; do
    [ "$(sha256sum 2>/dev/null <"$LIB")" != "$LIB_SHA256  -" ] || break
done
[ -n "$LIB" ] || { echo "slurm/lib.sh has changed: write this script again" >&2; exit 1; }
. "$LIB\""""
# How long the other tasks may run after the first has ended; aam ends them within a minute when a
# rank fails.
LAST_RANK_SECONDS = 120
FIELD = re.compile(r"\{\{ ([A-Z_]+) \}\}")


def in_comment(value: object) -> str:
    """Return a value in a form that fits on one line of a comment."""
    return json.dumps(str(value), ensure_ascii=False)[1:-1].replace("\\\\", "\\")


def format_bytes(size: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_time(seconds: int) -> str:
    """Return seconds in SLURM's form of a time."""
    days, rest = divmod(seconds, 86400)
    return f"{f'{days}-' if days else ''}{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def fill_template(name: str, values: dict[str, str]) -> str:
    """Return a template with its fields filled; a line with nothing but an empty field is left
    out.
    """
    lines = []
    for line in (TEMPLATES / name).read_text(encoding="utf-8").splitlines():
        only_field = FIELD.fullmatch(line.strip())
        if only_field and not values[only_field[1]]:
            continue
        lines.append(FIELD.sub(lambda match: values[match[1]], line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def bash_array(name: str, words: Iterable[object], *, lines: bool = False) -> str:
    """Return a bash array, on one line or with one line for each word."""
    quoted = [shlex.quote(str(word)) for word in words]
    text = "\n    ".join(["", *quoted]) + "\n" if lines and quoted else " ".join(quoted)
    return f"{name}=({text})"


def command_lines(words: list[str]) -> str:
    """Return the array COMMAND, with one option and its values on each line."""
    starts = ("\n    " if word.startswith("--") else " " for word in words)
    text = "".join(start + shlex.quote(word) for start, word in zip(starts, words, strict=True))
    return f"COMMAND=(\n    {text.strip()}\n)"


def masks(job: Job) -> str:
    """Return the CPUs next to each device as srun's bit masks, where each device has a task."""
    sets = job.site.cpu_sets if job.places.tasks == len(job.site.cpu_sets) else ()
    bits = []
    for cpus in sets:
        parts = [[int(cpu) for cpu in part.split("-")] for part in cpus.split(",")]
        bits.append(sum(1 << cpu for ends in parts for cpu in range(ends[0], ends[-1] + 1)))
    return ",".join(map(hex, bits))


def sbatch_lines(job: Job) -> str:
    """Return the #SBATCH lines; account, qos and gres only where they are set."""
    site = job.site
    has_gpu = job.places.device != "cpu"
    log = job.logs / f"{job.name}-%j.log"
    options = {
        "job-name": job.name,
        "partition": job.places.partition,
        "account": site.account,
        "qos": site.qos,
        "gres": job.gres if has_gpu else "",
        "gpus-per-node": job.devices if has_gpu and site.gpus_per_node and not site.gres else 0,
        "constraint": site.constraint,
        "reservation": site.reservation,
        "nodes": job.nodes,
        "ntasks-per-node": job.places.tasks,
        "cpus-per-task": job.places.cpus,
        "mem": "0" if site.exclusive else "",
        "exclusive": None if site.exclusive else "",
        "time": format_time(job.seconds),
        "signal": f"B:USR2@{job.warning}" if job.command else "",
        "requeue": None if job.command else "",
        "no-requeue": "" if job.command else None,
        "open-mode": "append",
        "chdir": job.logs,
        "output": log,
    }
    # None is an option without a value; empty options are left out.
    lines = []
    for name, value in options.items():
        text = f'"{value}"' if re.search(r"\s", str(value)) else str(value)
        if value not in ("", 0):
            lines.append(f"#SBATCH --{name}" + (f"={text}" if value is not None else ""))
    lines += [f"#SBATCH {option}" for option in site.sbatch]
    return "\n".join(lines)


def header(job: Job) -> str:
    """Return the first line and the comment that describes the job."""
    nodes = "1 node" if job.nodes == 1 else f"{job.nodes} nodes"
    count, seeds = job.places.tasks, job.request.seeds
    unit = "on its CPUs, no GPU is used" if job.places.device == "cpu" else "on one device"
    tasks = f"1 task {unit}" if count == 1 else f"{count} tasks, one for each device"
    place = f"{nodes} of {job.site.title} with {tasks} {'each' if job.nodes > 1 else ''}"
    lines = [f"aam {job.name}: {job.kind.title}, {place}", ""]
    lines += [f"written by  {in_comment(job.request.written_by)}"]
    for read in job.inputs:
        size = "" if read.size is None else f" ({format_bytes(read.size)})"
        lines += [f"reads       {in_comment(read.path)}{size}"]
    lines += [f"writes      {in_comment(job.out / job.file if job.file else job.out)}"]
    first = in_comment(shlex.join(["mkdir", "-p", str(job.logs)]))
    lines += [f"first       {first}  (--submit makes it; sbatch does not)"]
    image = job.image.path if job.image else f"none: {job.python_inside}"
    lines += [f"image       {in_comment(image)}", f"commit      {job.commit}"]
    seen = in_comment(job.site.seen) if job.site.seen else "aam has not run there yet"
    lines += [f"site        {seen}"]
    if job.each == "cv":
        lines += ["tasks       take the next fold of --cv until none is left"]
    if seeds:
        values = in_comment(", ".join(seeds))
        lines += [f"tasks       take the next seed until none is left: {values}"]
    lines += [f"lib.sh      sha256 {library_digest()}"]
    if job.command:
        limit, warning = format_time(job.seconds), f"{job.warning} s"
        size, speed = format_bytes(job.state_bytes), f"{job.site.shared_mb_per_second:g} MB/s"
        delay = "SLURM's delay, a trial of the device"
        lines += [
            f"time        {limit}; {warning} before its end: checkpoint, copy to shared storage, "
            "requeue",
            f"            ({warning}: {delay}, three times the {size} of a checkpoint",
            f"            at {speed}, at most half of the time)",
        ]
    lines += ["exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed"]
    first = "#!/bin/bash -l" if job.site.setup else "#!/bin/bash"
    return "\n".join([first, *(f"# {line}".rstrip() for line in lines)])


def library_digest() -> str:
    """Return the SHA-256 of slurm/lib.sh."""
    return hashlib.sha256(LIBRARY.read_bytes()).hexdigest()


def library_lines(job: Job) -> str:
    """Return the lines that read slurm/lib.sh, or its functions."""
    if not job.request.inline:
        return READ_LIBRARY % library_digest()
    _, _, functions = LIBRARY.read_text(encoding="utf-8").partition("\n\n")
    return functions.strip()


def settings(job: Job) -> str:
    """Return everything that was resolved when the script was written, as assignments."""
    site, image = job.site, job.image
    # The braces of {job} make quote() add quotes in any case.
    local = shlex.quote(site.path("local", job.request.user))
    local = local.replace("{job}", "'\"$SLURM_JOB_ID\"'").removesuffix("''")
    path = str(image.path) if image else "none"
    is_staged = image and image.copied and job.kind.template == "run.sh"
    staged = f"$AAM_LOCAL/aam/in/{shlex.quote(Path(path).name)}"
    lines = [
        f"AAM={shlex.quote(str(job.request.root))}",
        f"PYTHON={shlex.quote(site.python or job.request.python)}",
        f"AAM_SHARED={shlex.quote(site.path('shared', job.request.user))}",
        f"AAM_LOCAL={local}",
        "export AAM_SHARED AAM_LOCAL",
        "WORK=$AAM_LOCAL/aam   # on each node: in/ holds the inputs, run/ what the command writes",
        f"IMAGE={staged if is_staged else shlex.quote(path)}",
        bash_array("IMAGE_FILES", image.files if image else ()),
        bash_array("IMAGE_SHA256", image.sha256 if image else ()),
        f"OUT={shlex.quote(str(job.out))}",
        bash_array("ENTER", job.enter),
    ]
    copied = image.copied if image else ()
    lines += [bash_array("SOURCES", [*(read.path for read in job.inputs), *copied], lines=True)]
    if job.kind.template == "run.sh":
        targets = [*(read.target for read in job.inputs), *(path.name for path in copied)]
        lines += [bash_array("TARGETS", targets, lines=True), *run_settings(job)]
    return "\n".join(lines)


def run_settings(job: Job) -> list[str]:
    """Return the settings of a job that runs one command of aam."""
    site, seeds = job.site, job.request.seeds
    copy_seconds = max(5, round(site.copy_minutes * 12) * 5)
    return [
        f"FILE={shlex.quote(job.file)}",
        command_lines(job.command),
        f"MASKS={masks(job)}  # the CPUs of each task: those next to its device",
        srun_lines(job),
        f"INSIDE={shlex.quote(job.python_inside or 'python')}",
        f"DEVICE={job.places.device}",
        f"DEVICES={job.devices}  # that torch must see on a node",
        f"EACH={job.each}",
        bash_array("VALUES", seeds),
        bash_array("OPTION", ["--seed"] if seeds else ()),
        f"INTERFACES={shlex.quote(site.interfaces)}",
        f"RESERVE={job.reserve}  # bytes of a node's disk for what the job writes",
        f"COPY_SECONDS={copy_seconds}  # between copies of new checkpoints",
        f"MOST_REQUEUES={site.most_requeues}",
        f"CLEAN={'' if site.local_purged else 'yes'}",
    ]


def srun_lines(job: Job) -> str:
    """Return the array SRUN, which starts the tasks; SLURM does not pass --cpus-per-task on."""
    words = ["srun", f"--nodes={job.nodes}", f"--ntasks={job.nodes * job.places.tasks}"]
    words += [f"--ntasks-per-node={job.places.tasks}"]
    words += [f"--cpus-per-task={job.places.cpus}"] if job.places.cpus else []
    # Ranks exit almost together; killing the others after the first 85 would turn theirs into 143.
    # Runs that tasks share end at different times.
    wait = LAST_RANK_SECONDS if job.each == "rank" else 0
    lines = [" ".join(words), f"--kill-on-bad-exit=0 --wait={wait} --export=ALL"]
    if masks(job):
        lines += ['--mem-bind=local "--cpu-bind=mask_cpu:$MASKS"']
    return "SRUN=(\n    " + "\n    ".join(lines) + "\n)"


def render(job: Job) -> str:
    """Return the whole script."""
    setup = [f"{line} || fail 1 {shlex.quote(line)}" for line in job.site.setup]
    python = [job.python_inside or "python", "-m"]
    program = [*python, "aam"] if job.python_inside else ["aam"]
    values = {
        "HEADER": header(job),
        "SBATCH": sbatch_lines(job),
        "SETTINGS": settings(job),
        "LIBRARY": library_lines(job),
        "SETUP": "\n".join(setup),
        "PROGRAM": shlex.join(program),
        "SIMULATE": shlex.join([*python, "aam.data.simulate"]),
        "ROCM": shlex.quote(job.site.rocm),
    }
    return fill_template(job.kind.template, values)


def script_head(text: str) -> str:
    """Return the header and the #SBATCH lines of a script."""
    lines = text.splitlines()[1:]
    own = (not line.startswith("#") or line.startswith("# shellcheck") for line in lines)
    return "\n".join(lines[: list(own).index(True)])


def srun_words(site: Site, time: str, terminal: bool = False) -> list[str]:
    """Return the srun that runs a command on one node of a site now, or with `terminal` on this
    terminal.
    """
    keys = ("partition", "account", "qos", "gres", "constraint", "reservation")
    named = {key: getattr(site, key) for key in keys}
    if not site.gres:
        named["gpus-per-node"] = site.gpus_per_node
    named["cpus-per-task"] = site.cpus_per_device * site.devices_per_node
    words = ["srun", "--job-name=aam", "--nodes=1", "--ntasks=1"]
    words += [f"--{name}={value}" for name, value in named.items() if value]
    words += ["--exclusive", "--mem=0"] if site.exclusive else []
    words += ["--pty"] if terminal else []
    words += [f"--time={time or '01:00:00'}"]
    if site.setup:
        words += ["bash", "-lc", " && ".join([*site.setup, 'exec "$@"']), "reach"]
    return words


def cost(job: Job) -> list[str]:
    """Return lines that say what a job costs at most."""
    hours = job.nodes * job.seconds / 3600
    product = f"{job.nodes} x {job.seconds / 3600:.1f} h = {hours:.1f}"
    lines = [f"cost        at most {product} node-hours for each start"]
    return [*lines, *(f"devices     {remark}" for remark in job.places.remarks)]
