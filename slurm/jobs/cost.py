"""What a job costs at most, and how far its time goes at the speed that `aam profile` measured on a
node of the site.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from containers.lib.errors import InputError
from slurm.jobs.job import Job

# Where `profile_rocm --output-dir profile` writes the profile of a step.
PROFILE = "profile/step/profile.json"
MEASURE = "slurm/generate profile_rocm --submit -- --output-dir profile measures it on a node"
# A BIOM 1.0 table is JSON; its shape stands near its end or its beginning.
SHAPE = re.compile(rb'"shape": *\[ *\d+ *, *(\d+) *\]')


def measured_speed(path: Path) -> tuple[str, float]:
    """Return the device of a profile.json of `aam profile step`, and how many samples pretraining
    takes there in a second.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        speed = float(report["samples_per_s"])
        if not speed > 0:
            raise ValueError(f"{speed} samples/s")
        return str(report["device"]), speed
    except (OSError, ValueError, KeyError, TypeError) as error:
        wrong = f"is not a profile.json of aam profile step ({error!r})"
        raise InputError(f"profile: {path}: {wrong}") from error


def sample_count(job: Job) -> int | None:
    """Return how many samples the metadata, or else the tables of a job hold; None where Python
    alone cannot tell.
    """
    inputs = [(read.target.partition("/")[0], read.path) for read in job.inputs]
    files = [path for kind, path in inputs if kind == "metadata" and path.is_file()]
    if files:
        with files[0].open(encoding="utf-8", errors="replace") as file:
            return sum(not line.startswith("#") and bool(line.strip()) for line in file) - 1
    tables = [path for kind, path in inputs if kind == "table"]
    found = [path for path in tables if path.suffix == ".biom" and path.is_file()]
    counts = [int(shape[1]) for path in found if (shape := SHAPE.search(path.read_bytes()))]
    return sum(counts) if tables and len(counts) == len(tables) else None


def cost(job: Job) -> list[str]:
    """Return lines that say what a job costs at most and, where the speed was measured, what it
    reads in its time.
    """
    hours = job.nodes * job.seconds / 3600
    product = f"{job.nodes} x {job.seconds / 3600:.1f} h = {hours:.1f}"
    lines = [f"cost        at most {product} node-hours for each start"]
    lines += [f"devices     {remark}" for remark in job.places.remarks]
    if "--resume-from" not in job.command or job.places.device == "cpu":
        return lines
    default = Path(job.site.path("shared", job.request.user)) / PROFILE
    path = Path(job.site.path("profile", job.request.user) or default)
    if not path.is_file():
        return [*lines, f"speed       not measured: {path} is missing; {MEASURE}"]
    device, speed = measured_speed(path)
    ranks = job.nodes * job.places.tasks
    best = speed * ranks
    of_one = f"{speed:.3g} samples/s on one {device} ({path})"
    lines += [f"speed       {of_one}, at best {best:.3g} on {ranks}"]
    count = sample_count(job)
    if count and count > 0:
        fits = f"{int(job.seconds * best / count)} epochs in the time limit"
        epoch = f"an epoch of {count} samples: {fits}"
        return [*lines, f"time        at best {count / best:.3g} s for {epoch}"]
    return [*lines, f"time        at best {1000 / best:.3g} s for 1,000 samples of an epoch"]
