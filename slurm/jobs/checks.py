"""Checks before a job is submitted: of what SLURM accepts and then fails on, or does not see at
all.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from containers.lib.errors import InputError
from slurm.jobs.options import INPUTS, MAKE_VARIABLES, Options, option_problems, options_of
from slurm.jobs.request import Kind, Request
from slurm.jobs.site import Site

# A job shorter than this has no time to save a checkpoint.
SHORTEST_JOB = 120
# What a dry run without inputs shows in their place.
PLACEHOLDERS = MAKE_VARIABLES | {"--model": "MODEL"}


def parse_time(time: str) -> int:
    """Return the seconds of a time in one of SLURM's forms: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    match = re.fullmatch(r"(?:(\d{1,7})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?", time)
    if not match:
        raise InputError(f"--time {time}: expected HH:MM:SS or D-HH:MM:SS")
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None:
        return days * 86400 + first * 3600 + second * 60 + third
    if match[4] is not None:
        return first * 3600 + second * 60 + third
    return first * 60 + second


def requested_seconds(kind: Kind, request: Request, site: Site, problems: list[str]) -> int:
    """Return the time limit of a job in seconds: the requested one, or else that of its kind."""
    if request.time:
        try:
            return parse_time(request.time)
        except InputError as error:
            problems += error.problems
    hours = min(kind.minutes / 60, site.max_hours or site.hours) if kind.minutes else site.hours
    return round(hours * 3600)


def check_limits(site: Site, nodes: int, tasks: int, seconds: int, problems: list[str]) -> None:
    """Check nodes, devices and time against the site; ``sbatch --test-only`` accepts too much."""
    for option, number in (("--nodes", nodes), ("--devices", tasks)):
        if number < 1:
            problems.append(f"{option} {number}: expected 1 or more")
    if site.max_nodes and nodes > site.max_nodes:
        problems.append(f"--nodes {nodes}: {site.title} allows at most {site.max_nodes} for a job")
    if site.max_hours and seconds > site.max_hours * 3600:
        limit = f"the {site.max_hours:g} h that {site.title} allows"
        problems.append(f"--time: {seconds / 3600:g} h is more than {limit}")
    if seconds < SHORTEST_JOB:
        expected = "leaves no time for a checkpoint; expected 2 minutes or more"
        problems.append(f"--time: {seconds} s {expected}")
    if tasks > site.devices_per_node:
        problems.append(f"--devices {tasks}: a node has {site.devices_per_node}")


def check_log_folder(logs: Path, problems: list[str]) -> None:
    """Check that an #SBATCH line can hold the folder of the log; the rest of a script can hold
    every name.
    """
    if re.search(r"[\x00-\x1f\x7f\"'\\%$`]", str(logs)):
        wrong = "SLURM cannot write a log into a folder with quotes, %, $ or newlines in its name"
        problems.append(f"{str(logs)!r}: {wrong}; choose another by --output-dir (OUT of make)")


def check_free_space(site: Site, user: str, needed: int, problems: list[str]) -> None:
    """Check that shared storage exists and has so many bytes free."""
    shared = Path(site.path("shared", user))
    if not shared.is_dir():
        hint = f"is this a login node of {site.title}? AAM_SITE_SHARED=FOLDER names another"
        problems.append(f"shared: {shared} is not a folder here; {hint}")
    elif (free := shutil.disk_usage(shared).free) < needed:
        sizes = f"has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed"
        hint = "free some, or name a folder with more with AAM_SITE_SHARED=FOLDER"
        problems.append(f"shared: {shared} {sizes}; {hint}")


def add_placeholders(kind: Kind, options: Options, absences: list[str]) -> None:
    """Add what a job needs and nobody gave under the names of make's variables, and name it as
    absent.
    """
    present = {name for name, values in options if values}
    needs_input = kind.template == "stage.sh" and not present & set(INPUTS)
    for name in kind.needs or (("--table",) if needs_input else ()):
        if name not in present and "--config" not in present:
            options.append((name, [PLACEHOLDERS[name]]))
            absences.append(f"{name}: is missing, {PLACEHOLDERS[name]} stands in its place")


def check_options(kind: Kind, options: Options, request: Request, problems: list[str]) -> None:
    """Check that all needed inputs are given, and that aam has all options; the message shows a
    whole command.
    """
    present = {name for name, values in options if values}
    for name in kind.needs:
        if name not in present and "--config" not in present:
            example = f"make {request.job.replace('_', '-')} {kind.example}".rstrip()
            problems.append(f"{name}: is missing; for example: {example}")
    if kind.template == "stage.sh" and not present & set(INPUTS):
        problems.append(f"stage: no input to copy is given; for example: make stage {kind.example}")
    owner = f"aam {kind.command}" if kind.command else request.job
    # The predictions of several folds are joined before aam reads them.
    joined = {"--predictions": "several"} if request.prepare else {}
    problems += option_problems(options, options_of(kind.command, kind.template) | joined, owner)


def is_new_or_run(out: Path) -> bool:
    """Return whether a folder does not exist, holds logs only, or holds a run of aam."""
    if not out.exists():
        return True
    has_only_logs = out.is_dir() and {path.name for path in out.iterdir()} <= {"slurm"}
    return has_only_logs or (out / "run.json").exists()
