"""Job scripts: a template and a few substitutions, every value quoted by shlex.quote."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from parts.whole import ROOT

from jobs.job import Job
from jobs.site import Site

TEMPLATES = ROOT / "slurm" / "templates"
# For the other tasks to end after one has: aam ends them within a minute when a rank fails.
LAST_RANK_SECONDS = 120
FIELD = re.compile(r"\{\{ ([A-Z_]+) \}\}")


def shown(value: object) -> str:
    """A value on one line of a comment."""
    return json.dumps(str(value), ensure_ascii=False)[1:-1].replace("\\\\", "\\")


def human(size: float) -> str:
    """A number of bytes, to read."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def clock(seconds: int) -> str:
    """Seconds as SLURM writes a time."""
    days, rest = divmod(seconds, 86400)
    return f"{f'{days}-' if days else ''}{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def fill(name: str, values: dict[str, str]) -> str:
    """A template with its fields; a line that holds nothing but an empty field is left out."""
    kept = []
    for line in (TEMPLATES / name).read_text(encoding="utf-8").splitlines():
        alone = FIELD.fullmatch(line.strip())
        if alone and not values[alone[1]]:
            continue
        kept.append(FIELD.sub(lambda found: values[found[1]], line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)) + "\n"


def array(name: str, words: Iterable[object], *, lines: bool = False) -> str:
    """A bash array, on one line or on one for each word."""
    quoted = [shlex.quote(str(word)) for word in words]
    return f"{name}=(\n    " + "\n    ".join(quoted) + "\n)" if lines and quoted else f"{name}=({' '.join(quoted)})"


def command_lines(words: list[str]) -> str:
    """COMMAND, one option with its values on each line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return "COMMAND=(\n    " + "\n    ".join(" ".join(line) for line in lines) + "\n)"


def masks(site: Site) -> str:
    """The CPUs beside each device as srun's bit masks."""
    found = []
    for cpus in site.cpu_sets:
        mask = 0
        for part in cpus.split(","):
            first, _, last = part.partition("-")
            for cpu in range(int(first), int(last or first) + 1):
                mask |= 1 << cpu
        found.append(hex(mask))
    return ",".join(found)


def sbatch(job: Job) -> str:
    """The #SBATCH lines; account, qos and gres only where somebody set them."""
    site = job.site
    log = job.logs / (f"{job.name}-%A_%a.log" if job.folds else f"{job.name}-%j.log")
    options = {
        "job-name": job.name,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "gres": site.gres,
        "nodes": job.nodes,
        "ntasks-per-node": job.tasks,
        "cpus-per-task": site.cpus_per_device,
        "mem": "0" if site.exclusive else "",
        "exclusive": None if site.exclusive else "",
        "time": clock(job.seconds),
        "signal": f"B:USR2@{job.warning}" if job.command else "",
        "requeue": None if job.command else "",
        "no-requeue": "" if job.command else None,
        "open-mode": "append",
        "array": f"0-{len(job.folds) - 1}" if job.folds else "",
        "kill-on-invalid-dep": "yes" if job.after else "",
        "chdir": job.logs,
        "output": log,
    }
    lines = []
    for name, value in options.items():
        if value is None:
            lines.append(f"#SBATCH --{name}")
        elif value not in ("", 0):
            text = str(value)
            lines.append(f'#SBATCH --{name}="{text}"' if re.search(r"\s", text) else f"#SBATCH --{name}={text}")
    return "\n".join(lines)


def header(job: Job) -> str:
    """What a reader should know first."""
    nodes = "1 node" if job.nodes == 1 else f"{job.nodes} nodes"
    tasks = "1 task" if job.tasks == 1 else f"{job.tasks} tasks, one for each device"
    lines = [f"aam {job.name}: {job.title}, {nodes} of {job.site.title} with {tasks}" + (" each" * (job.nodes > 1))]
    lines += ["", f"written by  {shown(job.written_by)}"]
    for each in job.inputs:
        lines += [f"reads       {shown(each.path)}" + ("" if each.size is None else f" ({human(each.size)})")]
    lines += [f"writes      {shown(job.out / job.file if job.file else job.out)}"]
    lines += [f"log         {shown(job.logs)}"]
    lines += [f"image       {shown(job.image or 'none: ' + job.python_inside)}", f"commit      {job.commit}"]
    if job.folds:
        lines += [f"array       one element for each fold: {shown(', '.join(job.folds))}"]
    lines += [f"time        {clock(job.seconds)}" + (f"; {job.warning} s before its end:" if job.command else "")]
    if job.command:
        lines += [
            f"            checkpoint, copy to VAST, back into the queue (at most {job.site.most_requeues} times)",
            f"            {job.warning} s: 240 for SLURM's clock and a step, and thrice the "
            f"{human(job.state_bytes)} of a checkpoint",
            f"            at {job.site.vast_mb_per_second:g} MB/s, in whole minutes, at most half of the time",
        ]
    lines += ["exit        0 finished, 85 checkpointed, submit it again, 2 bad input, 1 failed"]
    first = "#!/bin/bash -l" if job.site.setup else "#!/bin/bash"
    return "\n".join([first, *(f"# {line}".rstrip() for line in lines)])


def facts(job: Job) -> str:
    """Everything that was resolved at submission, as assignments."""
    site = job.site
    nvme = shlex.quote(site.place("nvme", job.user)).replace("{job}", "'\"$SLURM_JOB_ID\"'")
    # quote() leaves a harmless path bare; the braces always make it quote.
    nvme = nvme.removesuffix("''")
    sources = [each.path for each in job.inputs] + list(job.carried)
    places = [each.place for each in job.inputs] + [path.name for path in job.carried]
    if job.template == "stage.sh":
        return array("SOURCES", sources, lines=True)
    values = {"AAM": str(job.root), "PYTHON": job.python, "AAM_VAST": site.place("vast", job.user)}
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()] + [f"AAM_NVME={nvme}"]
    if job.template == "run.sh":
        image = str(job.image or "none")
        place = f"$AAM_NVME/aam/in/{shlex.quote(Path(image).name)}" if job.carried else shlex.quote(image)
        lines += [f"IMAGE={place}", f"OUT={shlex.quote(str(job.out))}", f"FILE={shlex.quote(job.file)}"]
        lines += [array("SOURCES", sources, lines=True), array("PLACES", places, lines=True)]
        lines += [array("ENTER", job.enter), command_lines(job.command)]
        copy = max(5, round(site.copy_minutes * 12) * 5)
        lines += [f"RESERVE={job.reserve}  # bytes of a node's disk for what is written"]
        lines += [f"COPY_SECONDS={copy}  # between copies of new checkpoints"]
        lines += [f"MOST_REQUEUES={site.most_requeues}"]
    return "\n".join(lines)


def fabric(site: Site) -> str:
    """What is set on a node that has the interfaces or paths it is for."""
    lines = []
    if site.interfaces:
        place = f"/sys/class/net/{shlex.quote(site.interfaces)}*"
        lines += ["local path found=()"]
        lines += [f'for path in {place}; do [ ! -e "$path" ] || found+=("${{path##*/}}"); done']
        lines += ["if (( ${#found[@]} )); then", "    export GLOO_SOCKET_IFNAME=${found[0]} NCCL_SOCKET_IFNAME"]
        lines += ['    NCCL_SOCKET_IFNAME=$(IFS=,; printf %s "${found[*]}")', "fi"]
    for each in site.fabric:
        if site.fabric_opt_in or not each.get("opt_in"):
            words = f"{each['name']}={shlex.quote(str(each['value']))}"
            lines += [f"[ ! -e {shlex.quote(each['path'])} ] || export {words}"]
    return "\n".join(f"    {line}" for line in lines)


def srun(job: Job) -> str:
    """The words of the one step that trains: SLURM does not hand --cpus-per-task on to it."""
    site = job.site
    words = [f"--nodes={job.nodes}", f"--ntasks={job.nodes * job.tasks}", f"--ntasks-per-node={job.tasks}"]
    words += [f"--cpus-per-task={site.cpus_per_device}"] if site.cpus_per_device else []
    # Ranks exit together, one a moment before another: to kill on the first 85 would turn the others' into 143.
    lines = ["srun " + " ".join(words), f"--kill-on-bad-exit=0 --wait={LAST_RANK_SECONDS} --export=ALL"]
    if site.cpu_sets and job.tasks == len(site.cpu_sets):
        lines += [f"--cpu-bind=mask_cpu:{masks(site)}"]
    return " \\\n        ".join(lines)


def element(job: Job) -> str:
    """An array's element: its fold, and a folder of its own."""
    if not job.folds:
        return ""
    lines = [array("FOLDS", job.folds), "FOLD=${FOLDS[$SLURM_ARRAY_TASK_ID]}", "OUT=$OUT/fold-$FOLD"]
    return "\n".join([*lines, "COMMAND+=(--split-column " + shlex.quote(job.fold_column) + ' --test-fold "$FOLD")'])


def render(job: Job) -> str:
    """The whole script."""
    site = job.site
    setup = [f"{line} || fail 1 {shlex.quote(line)}" for line in site.setup]
    values = {"HEADER": header(job), "SBATCH": sbatch(job), "FACTS": facts(job)}
    values |= {"DISK": (TEMPLATES / "disk.sh").read_text(encoding="utf-8").strip(), "SETUP": "\n".join(setup)}
    values |= {"OUT": shlex.quote(str(job.out)), "IMAGE": shlex.quote(str(job.image or "none"))}
    program = [job.python_inside, "-m", "aam"] if job.python_inside else ["aam"]
    values |= {"ENTER": shlex.join(job.enter), "PROGRAM": shlex.join(program)}
    values |= {"FABRIC": fabric(site), "SRUN": srun(job), "ELEMENT": element(job), "PREPARE": job.prepare}
    values |= {"CLEAN": "" if site.nvme_purged else '[ -z "$copied" ] || each_node clean'}
    return fill(job.template, values)


def opening(text: str) -> str:
    """The header and the #SBATCH lines of a script."""
    lines = text.splitlines()[1:]
    end = next(i for i, line in enumerate(lines) if not line.startswith("#") or line.startswith("# shellcheck"))
    return "\n".join(lines[:end])


def srun_words(site: Site, time: str) -> list[str]:
    """What runs a command on one node of a site now."""
    named = {"partition": site.partition, "account": site.account, "qos": site.qos, "gres": site.gres}
    found = [f"--{name}={value}" for name, value in named.items() if value]
    found += [f"--cpus-per-task={site.cpus_per_device * site.devices_per_node}"] if site.cpus_per_device else []
    found += ["--exclusive", "--mem=0"] if site.exclusive else []
    words = ["srun", "--job-name=aam", "--nodes=1", "--ntasks=1", *found, f"--time={time or '01:00:00'}"]
    return [*words, "bash", "-lc", " && ".join([*site.setup, 'exec "$@"']), "reach"] if site.setup else words
