"""The probe: tries in a child process what a run is about to do on its device, and keeps the
verdict.

A child that crashes, hangs, answers nonsense or refuses costs the run nothing but its time.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import importlib
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

import aam
from aam.device.distributed import (
    LAUNCHER,
    LOST,
    PR_SET_PDEATHSIG,
    SINGLE,
    World,
    end_rank,
    free_port,
)
from aam.device.environment import (
    RANK_VARIABLES,
    ChildEnd,
    cache_folder,
    container,
    driver_version,
    run_child,
)
from aam.device.platform import Facts, choose_device, device_name
from aam.errors import FINISHED, OUT_OF_MEMORY, InputError
from aam.files.atomic import read_json, write_text

log = logging.getLogger("aam")

ANSWER_FORMAT = 1
# Seconds of a trial where its specification gives no other limit.
PROBE_SECONDS = 300.0
# Characters of a reason.
LONGEST_REASON = 300
# What a child reports once and not again: its device was full, or another process had it.
PASSING = ("memory may be full", "busy or unavailable")

# The line of a longer message that says what went wrong.
CAUSE = re.compile(r"[Ee]rror: ")

CHILD_PROGRAM = "from aam.device.probe import answer; answer()"


@dataclasses.dataclass(frozen=True)
class ProbeSpec:
    """Something that is tried on a device.

    Attributes
    ----------
    trial : str
        ``package.module:function``. The function takes the device and the options by name, and
        returns plain data. It raises an error with the reason where the device fails.
    options : dict
        Plain data that the function takes and the verdict depends on.
    device : torch.device
    seconds : float
        Time limit of the child process.
    world : World
        The ranks of the run. Rank 0 tries, and tells the others.
    together : bool
        Each rank tries in a child process, and these processes are ranks of a group of their own.
    refresh : bool
        Try although a verdict is kept.
    kept : bool
        Keep the verdict, and use one that is kept.
    isolated : bool
        Try in a child process. Without it a crash ends this process.
    """

    trial: str
    options: Facts
    device: torch.device
    seconds: float = PROBE_SECONDS
    world: World = SINGLE
    together: bool = False
    refresh: bool = False
    kept: bool = True
    isolated: bool = True


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Verdict:
    """The outcome of a trial.

    Attributes
    ----------
    ok : bool
        Whether the device can do it.
    reason : str
        Why not, or what was measured.
    facts : dict
        What the trial returned.
    seconds : float
        Time of the trial.
    """

    ok: bool
    reason: str
    facts: Facts = field(default_factory=dict)
    seconds: float = 0.0

    def as_facts(self) -> Facts:
        """Return the verdict as plain data for run.json, without what the trial returned."""
        return {"ok": self.ok, "reason": self.reason, "seconds": round(self.seconds, 1)}


def read_verdict(value: Any) -> Verdict | None:
    """Return the verdict that a file or a child process gave as plain data; None if it is none."""
    try:
        return Verdict(**value)
    except (TypeError, ValueError):
        return None


def verdict(name: str, spec: ProbeSpec) -> Verdict:
    """Return whether the device can do what `spec` describes, and log it in one line.

    Every rank must call it. The verdict of an earlier process on the same device, with the same
    driver, torch, image and options, is used again. Never raises because of what is tried.

    Parameters
    ----------
    name : str
        The capability, such as ``capture``.
    spec : ProbeSpec
    """
    world = spec.world
    if not world.is_main:
        if world.broadcast(None):
            try_now(spec)
        return Verdict(**world.broadcast(None))
    question = {"format": ANSWER_FORMAT, **machine_facts(spec.device), "trial": spec.trial}
    question["options"] = spec.options
    if spec.together and world.size > 1:
        question["ranks"] = world.size
    digest = hashlib.blake2b(json.dumps(question).encode(), digest_size=8).hexdigest()
    path = cache_folder() / f"{name}-{digest}.json"
    earlier = None if spec.refresh or not spec.kept else _kept_verdict(path, question)
    world.broadcast(spec.together and earlier is None)
    outcome = try_now(spec) if earlier is None else earlier
    if earlier is None and spec.kept and not any(words in outcome.reason for words in PASSING):
        _keep(path, question, outcome)
    text = f"{name} {'works' if outcome.ok else 'does not work here'}: {outcome.reason}"
    text += f" ({outcome.seconds:.1f} s{'' if earlier is None else ', tried earlier'})"
    # What this very process does anyway is no news.
    fine = log.info if spec.isolated else log.debug
    (fine if outcome.ok else log.warning)("probe: %s", text)
    world.broadcast(vars(outcome))
    return outcome


def _kept_verdict(path: Path, question: Facts) -> Verdict | None:
    """Return the verdict on this very question in a file; None where there is none, or it is
    damaged.
    """
    content: Any = None
    with contextlib.suppress(InputError):
        content = read_json(path)
    is_answer = isinstance(content, dict) and content.get("question") == question
    return read_verdict(content.get("verdict")) if is_answer else None


def _keep(path: Path, question: Facts, outcome: Verdict) -> None:
    """Write a verdict to a file of its own; where that fails, it is tried again next time."""
    try:
        write_text(path, json.dumps({"question": question, "verdict": vars(outcome)}) + "\n")
    except OSError as error:
        log.info("%s: not kept (%s); it is measured again next time", path, error.strerror)


def machine_facts(device: torch.device) -> Facts:
    """Return what every verdict depends on: device, driver, torch, image and release of aam."""
    return {
        "device": device_name(device),
        "driver": driver_version() if device.type == "cuda" else "",
        "torch": torch.__version__,
        "image": container()["digest"],
        "aam": aam.__version__,
    }


def check_alike(device_option: str, world: World) -> None:
    """Refuse ranks whose machines differ in what a verdict depends on; every rank must call it.

    All ranks follow the verdicts of rank 0. Processors may differ, because no verdict is about
    them.

    Raises
    ------
    InputError
        For each difference, it names two ranks with their nodes and values.
    """
    if world.size == 1:
        return
    try:
        device = choose_device(device_option)
        facts = machine_facts(device)
        facts["device"] = facts["device"] if device.type == "cuda" else device.type
    except InputError as error:
        facts = {"device": str(error)}
    first, *others = world.gather_facts({**facts, "node": os.uname().nodename})
    problems = []
    for name in first.keys() - {"node"}:
        odd = [rank for rank, other in enumerate(others, 1) if other.get(name) != first[name]]
        if odd:
            pair = ((0, first), (odd[0], others[odd[0] - 1]))
            values = (f"rank {rank} ({of['node']}) {of.get(name) or 'none'}" for rank, of in pair)
            remedy = "start all ranks on machines that are alike"
            problems.append(f"{name}: {', '.join(values)}; {remedy}")
    if problems:
        raise InputError(*sorted(problems))


def try_now(spec: ProbeSpec) -> Verdict:
    """Try what `spec` describes now.

    Where ranks try together, every one calls it, and what fails on one fails for all.
    """
    start, world = time.perf_counter(), spec.world
    request = {"trial": spec.trial, "options": spec.options, "device": str(spec.device)}
    if not spec.isolated:
        outcome = _outcome(request)
    elif not spec.together or world.size == 1:
        outcome = _ask_child(request, spec.seconds)
    else:
        outcome = _ask_child(request, spec.seconds, child_ranks(world))
        ranks = [Verdict(**facts) for facts in world.gather_facts(vars(outcome))]
        failed = [(LOST in of.reason, rank) for rank, of in enumerate(ranks) if not of.ok]
        if failed:
            # Who lost another rank says nothing about the device.
            rank = min(failed)[1]
            outcome = replace(ranks[rank], reason=f"rank {rank}: {ranks[rank].reason}")
    return replace(outcome, seconds=time.perf_counter() - start)


def child_ranks(world: World) -> dict[str, str]:
    """Return the environment by which the child processes of all ranks meet, on the node of rank
    0.
    """
    port = world.broadcast(free_port() if world.is_main else 0)
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    numbers = (world.rank, world.size, world.local_rank)
    places = dict(zip(RANK_VARIABLES[0], map(str, numbers), strict=True))
    return {**places, "MASTER_ADDR": host, "MASTER_PORT": str(port)}


# --- the child process ---------------------------------------------------------------------------


def _outcome(request: Facts) -> Verdict:
    """Run a trial in this process; return its verdict without the seconds."""
    try:
        module, _, function = request["trial"].partition(":")
        trial: Callable[..., Facts] = getattr(importlib.import_module(module), function)
        facts = trial(device=torch.device(request["device"]), **request["options"])
        # What JSON cannot hold is an error here, not where the answer is read.
        facts = json.loads(json.dumps(facts))
    # Whatever a device or a compiler raises is an answer.
    except Exception as error:  # noqa: BLE001
        return Verdict(False, describe_error(error))
    return Verdict(True, str(facts.get("reason", "passed")), facts)


def describe_error(error: Exception) -> str:
    """Return an error in one line, with its cause: a compiler names that on a later line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join([lines[0], *[line for line in lines[1:] if CAUSE.search(line)][-1:]])
    # A full device says nothing about what it can do.
    full = "memory may be full: " if OUT_OF_MEMORY.search(f"{type(error).__name__} {error}") else ""
    return f"{full}{text}"[:LONGEST_REASON]


def answer() -> None:
    """Answer the request on standard input; the program of the child process.

    Whatever prints writes to the standard error: the answer stands alone on standard output.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        output.write(json.dumps(vars(_outcome(json.load(sys.stdin)))))
    end_rank(FINISHED)


def child_environment() -> dict[str, str]:
    """Return the environment of a child process: this one's modules, and no rank of the run."""
    ranks = {name for names in RANK_VARIABLES for name in names}
    ranks |= {LAUNCHER, "TORCHELASTIC_USE_AGENT_STORE"}
    kept = {name: value for name, value in os.environ.items() if name not in ranks}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _ask_child(request: Facts, limit: float, place: Mapping[str, str] = {}) -> Verdict:
    """Let a child process answer within `limit` seconds; return its verdict, or what ended it.

    `place` are variables that make it one of several ranks.
    """
    environment, outcome = {**child_environment(), **place}, None
    try:
        end = run_child(CHILD_PROGRAM, limit, json.dumps(request), environment)
    except OSError as error:
        why = f"no process could be started ({error.strerror}); memory may be full"
        return Verdict(False, why)
    if reason := _reason(end, limit):
        return Verdict(False, reason)
    with contextlib.suppress(ValueError):
        outcome = read_verdict(json.loads(end.output))
    return outcome or Verdict(False, "its answer cannot be read")


def _reason(end: ChildEnd, limit: float) -> str:
    """Return what ended a child process, or an empty text where it finished."""
    if end.status is None:
        return f"not done within {limit:g} s"
    if end.status == -signal.SIGKILL:
        return "its process was killed (SIGKILL); memory may be full"
    lines = [line.strip() for line in end.errors.splitlines()]
    cause = [f": {line}" for line in lines if "rror" in line or "ssertion" in line][-1:]
    return f"its process {end}{''.join(cause)}"[:LONGEST_REASON] if end.status else ""
