"""Job scripts: a template and a few substitutions; shlex.quote quotes every value."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from containers.lib.files import ROOT
from slurm.jobs.job import Job
from slurm.jobs.site import Site

TEMPLATES = ROOT / "slurm" / "templates"
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
    return (
        f"{name}=(\n    " + "\n    ".join(quoted) + "\n)"
        if lines and quoted
        else f"{name}=({' '.join(quoted)})"
    )


def command_lines(words: list[str]) -> str:
    """Return the array COMMAND, with one option and its values on each line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return "COMMAND=(\n    " + "\n    ".join(" ".join(line) for line in lines) + "\n)"


def cpu_masks(site: Site) -> str:
    """Return the CPUs beside each device as srun's bit masks."""
    masks = []
    for cpus in site.cpu_sets:
        mask = 0
        for part in cpus.split(","):
            first, _, last = part.partition("-")
            for cpu in range(int(first), int(last or first) + 1):
                mask |= 1 << cpu
        masks.append(hex(mask))
    return ",".join(masks)


def sbatch_lines(job: Job) -> str:
    """Return the #SBATCH lines; account, qos and gres only where they are set."""
    site = job.site
    log = job.logs / (f"{job.name}-%A_%a.log" if job.array or job.stripes else f"{job.name}-%j.log")
    options = {
        "job-name": job.name,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "gres": site.gres,
        "gpus-per-node": 0 if site.gres else site.gpus_per_node,
        "constraint": site.constraint,
        "reservation": site.reservation,
        "nodes": job.nodes,
        "ntasks-per-node": job.tasks,
        "cpus-per-task": site.cpus_per_device,
        "mem": "0" if site.exclusive else "",
        "exclusive": None if site.exclusive else "",
        "time": format_time(job.seconds),
        "signal": f"B:USR2@{job.warning}" if job.command else "",
        "requeue": None if job.command else "",
        "no-requeue": "" if job.command else None,
        "open-mode": "append",
        "array": f"0-{len(job.array.values) - 1}"
        if job.array
        else f"1-{job.stripes}"
        if job.stripes
        else "",
        "chdir": job.logs,
        "output": log,
    }
    # None is an option without a value; empty options are left out.
    lines = []
    for name, value in options.items():
        if value is None:
            lines.append(f"#SBATCH --{name}")
        elif value not in ("", 0):
            text = str(value)
            lines.append(
                f'#SBATCH --{name}="{text}"'
                if re.search(r"\s", text)
                else f"#SBATCH --{name}={text}"
            )
    return "\n".join(lines)


def header(job: Job) -> str:
    """Return the first line and the comment that describes the job."""
    nodes = "1 node" if job.nodes == 1 else f"{job.nodes} nodes"
    tasks = "1 task" if job.tasks == 1 else f"{job.tasks} tasks, one for each device"
    lines = [
        f"aam {job.name}: {job.title}, {nodes} of {job.site.title} with {tasks}"
        + (" each" * (job.nodes > 1))
    ]
    lines += ["", f"written by  {in_comment(job.written_by)}"]
    for read in job.inputs:
        size = "" if read.size is None else f" ({format_bytes(read.size)})"
        lines += [f"reads       {in_comment(read.path)}{size}"]
    lines += [f"writes      {in_comment(job.out / job.file if job.file else job.out)}"]
    lines += [f"log         {in_comment(job.logs)}"]
    lines += [
        (
            f"first       {in_comment(shlex.join(['mkdir', '-p', str(job.logs)]))}  (--submit "
            "makes "
            "it; sbatch does not)"
        )
    ]
    lines += [
        f"image       {in_comment(job.image or 'none: ' + job.python_inside)}",
        f"commit      {job.commit}",
    ]
    if job.array:
        lines += [
            (
                f"array       one element for each {job.array.name}: "
                f"{in_comment(', '.join(job.array.values))}"
            )
        ]
    if job.stripes:
        lines += [
            (
                f"array       {job.stripes} parts of a matrix; then: aam unifrac --merge PARTS "
                "--output MATRIX"
            )
        ]
    lines += [
        f"time        {format_time(job.seconds)}"
        + (f"; {job.warning} s before its end:" if job.command else "")
    ]
    if job.command:
        lines += [
            (
                "            checkpoint, copy to shared storage, requeue (at most "
                f"{job.site.most_requeues} times)"
            ),
            f"            {job.warning} s: 240 s for SLURM's delay and a step, and three times the "
            f"{format_bytes(job.state_bytes)} of a checkpoint",
            f"            at {job.site.shared_mb_per_second:g} MB/s, in whole minutes, at most "
            "half of the time",
        ]
    lines += ["exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed"]
    first = "#!/bin/bash -l" if job.site.setup else "#!/bin/bash"
    return "\n".join([first, *(f"# {line}".rstrip() for line in lines)])


def settings(job: Job) -> str:
    """Return everything that was resolved when the script was written, as assignments."""
    site = job.site
    # The braces of {job} make quote() add quotes in any case.
    local = (
        shlex.quote(site.path("local", job.user))
        .replace("{job}", "'\"$SLURM_JOB_ID\"'")
        .removesuffix("''")
    )
    sources = [read.path for read in job.inputs] + list(job.image_files)
    targets = [read.target for read in job.inputs] + [path.name for path in job.image_files]
    if job.template == "stage.sh":
        return bash_array("SOURCES", sources, lines=True)
    values = {
        "AAM": str(job.root),
        "PYTHON": job.python,
        "AAM_SHARED": site.path("shared", job.user),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()] + [
        f"AAM_LOCAL={local}"
    ]
    if job.template == "run.sh":
        image = str(job.image or "none")
        staged_image = f"$AAM_LOCAL/aam/in/{shlex.quote(Path(image).name)}"
        lines += [f"IMAGE={staged_image if job.image_files else shlex.quote(image)}"]
        lines += [f"OUT={shlex.quote(str(job.out))}", f"FILE={shlex.quote(job.file)}"]
        lines += [
            bash_array("SOURCES", sources, lines=True),
            bash_array("TARGETS", targets, lines=True),
        ]
        lines += [bash_array("ENTER", job.enter), command_lines(job.command)]
        copy_seconds = max(5, round(site.copy_minutes * 12) * 5)
        lines += [f"RESERVE={job.reserve}  # bytes of a node's disk for what the job writes"]
        lines += [f"COPY_SECONDS={copy_seconds}  # between copies of new checkpoints"]
        lines += [f"MOST_REQUEUES={site.most_requeues}"]
    return "\n".join(lines)


def fabric_lines(site: Site) -> str:
    """Return the lines that set variables of the network on a node that has the interfaces or paths
    for them.
    """
    lines = []
    if site.interfaces:
        paths = f"/sys/class/net/{shlex.quote(site.interfaces)}*"
        lines += ["local path interfaces=()"]
        lines += [
            f'for path in {paths}; do [ ! -e "$path" ] || interfaces+=("${{path##*/}}"); done'
        ]
        lines += ["if (( ${#interfaces[@]} )); then"]
        lines += ["    export GLOO_SOCKET_IFNAME=${interfaces[0]} NCCL_SOCKET_IFNAME"]
        lines += ['    NCCL_SOCKET_IFNAME=$(IFS=,; printf %s "${interfaces[*]}")', "fi"]
    for variable in site.fabric:
        if site.fabric_opt_in or not variable.get("opt_in"):
            assignment = f"{variable['name']}={shlex.quote(str(variable['value']))}"
            lines += [f"[ ! -e {shlex.quote(variable['path'])} ] || export {assignment}"]
    return "\n".join(f"    {line}" for line in lines)


def srun_line(job: Job) -> str:
    """Return the srun that starts the tasks; SLURM does not pass --cpus-per-task on to it."""
    site = job.site
    words = [
        f"--nodes={job.nodes}",
        f"--ntasks={job.nodes * job.tasks}",
        f"--ntasks-per-node={job.tasks}",
    ]
    words += [f"--cpus-per-task={site.cpus_per_device}"] if site.cpus_per_device else []
    # Ranks exit almost together; killing the others after the first 85 would turn theirs into 143.
    lines = [
        "srun " + " ".join(words),
        f"--kill-on-bad-exit=0 --wait={LAST_RANK_SECONDS} --export=ALL",
    ]
    if site.cpu_sets and job.tasks == len(site.cpu_sets):
        lines += [f"--cpu-bind=mask_cpu:{cpu_masks(site)}"]
    return " \\\n        ".join(lines)


def array_element(job: Job) -> str:
    """Return the lines that give an element of a job array its value and its folder, or its part of
    a matrix.
    """
    if job.stripes:
        name = shlex.quote(Path(job.file).stem) + "-$SLURM_ARRAY_TASK_ID.h5"
        part = f'--stripe "$SLURM_ARRAY_TASK_ID/{job.stripes}" --output "run/$FILE"'
        return "\n".join(
            [f"FILE={name}", f'COMMAND=("${{COMMAND[@]:0:${{#COMMAND[@]}}-2}}" {part})']
        )
    if job.array is None:
        return ""
    lines = [bash_array("VALUES", job.array.values), "VALUE=${VALUES[$SLURM_ARRAY_TASK_ID]}"]
    lines += [f"OUT=$OUT/{job.array.name}-$VALUE"]
    return "\n".join(
        [*lines, f'COMMAND+=({shlex.join([*job.array.words, job.array.option])} "$VALUE")']
    )


def render(job: Job) -> str:
    """Return the whole script."""
    site = job.site
    setup = [f"{line} || fail 1 {shlex.quote(line)}" for line in site.setup]
    values = {"HEADER": header(job), "SBATCH": sbatch_lines(job), "SETTINGS": settings(job)}
    values |= {
        "FILES": (TEMPLATES / "files.sh").read_text(encoding="utf-8").strip(),
        "SETUP": "\n".join(setup),
    }
    values |= {"OUT": shlex.quote(str(job.out)), "IMAGE": shlex.quote(str(job.image or "none"))}
    program = [job.python_inside, "-m", "aam"] if job.python_inside else ["aam"]
    values |= {"ENTER": shlex.join(job.enter), "PROGRAM": shlex.join(program)}
    values |= {
        "FABRIC": fabric_lines(site),
        "SRUN": srun_line(job),
        "ELEMENT": array_element(job),
        "PREPARE": job.prepare,
    }
    values |= {"PYTHON_INSIDE": shlex.quote(job.python_inside or "python")}
    values |= {"CLEAN": "" if site.local_purged else '[ -z "$copied" ] || on_each_node clean'}
    return fill_template(job.template, values)


def script_head(text: str) -> str:
    """Return the header and the #SBATCH lines of a script."""
    lines = text.splitlines()[1:]
    end = next(
        i
        for i, line in enumerate(lines)
        if not line.startswith("#") or line.startswith("# shellcheck")
    )
    return "\n".join(lines[:end])


def srun_words(site: Site, time: str, terminal: bool = False) -> list[str]:
    """Return the srun that runs a command on one node of a site now, or with `terminal` on this
    terminal.
    """
    named = {
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "gres": site.gres,
    }
    named |= {
        "gpus-per-node": "" if site.gres else str(site.gpus_per_node or ""),
        "constraint": site.constraint,
        "reservation": site.reservation,
    }
    options = [f"--{name}={value}" for name, value in named.items() if value]
    options += (
        [f"--cpus-per-task={site.cpus_per_device * site.devices_per_node}"]
        if site.cpus_per_device
        else []
    )
    options += ["--exclusive", "--mem=0"] if site.exclusive else []
    options += ["--pty"] if terminal else []
    words = [
        "srun",
        "--job-name=aam",
        "--nodes=1",
        "--ntasks=1",
        *options,
        f"--time={time or '01:00:00'}",
    ]
    return (
        [*words, "bash", "-lc", " && ".join([*site.setup, 'exec "$@"']), "reach"]
        if site.setup
        else words
    )
