"""The probe: tries in a child process what a run is about to do on its device, and keeps the
verdict.

A child that crashes, hangs, answers nonsense or refuses costs the run nothing but its time.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

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
from aam.device.environment import RANK_VARIABLES, ChildEnd, container, driver_version, run_child
from aam.device.platform import Facts, cached_verdict, choose_device, device_name
from aam.errors import FINISHED, OUT_OF_MEMORY, InputError

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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Verdict:
    """The outcome of a trial.

    Attributes
    ----------
    ok : bool
        Whether the device can do it.
    reason : str
        Why not, or what was measured.
    seconds : float
        Time of the trial.
    facts : dict
        What the trial returned.
    """

    ok: bool
    reason: str
    seconds: float
    facts: Facts

    def as_facts(self) -> Facts:
        """Return the verdict as plain data for run.json, without what the trial returned."""
        return {"ok": self.ok, "reason": self.reason, "seconds": round(self.seconds, 1)}


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
    facts = None
    if spec.world.is_main:
        facts = _cached_outcome(name, spec)
    elif spec.world.broadcast(None):
        try_now(spec)
    return Verdict(**spec.world.broadcast(facts))


def _cached_outcome(name: str, spec: ProbeSpec) -> Facts:
    question = {"format": ANSWER_FORMAT, **machine_facts(spec.device), "trial": spec.trial}
    question["options"] = spec.options
    if spec.together and spec.world.size > 1:
        question["ranks"] = spec.world.size
    trials: list[Facts] = []

    def measure() -> Facts:
        spec.world.broadcast(spec.together)
        trials.append(try_now(spec))
        return trials[-1]

    if spec.kept:
        facts = cached_verdict(name, question, measure, _is_verdict, spec.refresh)
    else:
        facts = measure()
    if not trials:
        spec.world.broadcast(False)
    word = "works" if facts["ok"] else "does not work here"
    earlier = "" if trials else ", tried earlier"
    text = f"{name} {word}: {facts['reason']} ({facts['seconds']:.1f} s{earlier})"
    # What this very process does anyway is no news.
    fine = log.info if spec.isolated else log.debug
    (fine if facts["ok"] else log.warning)("probe: %s", text)
    return facts


def _is_verdict(value: Any) -> bool:
    """Return whether a value that was read from a file is a verdict that is worth keeping."""
    types = {"ok": bool, "reason": str, "seconds": float, "facts": dict}
    if not isinstance(value, dict) or value.keys() != types.keys():
        return False
    is_complete = all(isinstance(value[name], kind) for name, kind in types.items())
    return is_complete and not any(words in value["reason"] for words in PASSING)


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


def try_now(spec: ProbeSpec) -> Facts:
    """Try what `spec` describes now; return the verdict as plain data.

    Where ranks try together, every one calls it, and what fails on one fails for all.
    """
    start, world = time.perf_counter(), spec.world
    request = {"trial": spec.trial, "options": spec.options, "device": str(spec.device)}
    if not spec.isolated:
        facts = _outcome(request)
    elif not spec.together or world.size == 1:
        facts = _ask_child(request, spec.seconds)
    else:
        facts = _ask_child(request, spec.seconds, child_ranks(world))
        ranks = world.gather_facts(facts)
        failed = [(LOST in of["reason"], rank) for rank, of in enumerate(ranks) if not of["ok"]]
        if failed:
            # Who lost another rank says nothing about the device.
            rank = min(failed)[1]
            facts = {**ranks[rank], "reason": f"rank {rank}: {ranks[rank]['reason']}"}
    return {**facts, "seconds": time.perf_counter() - start}


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


def _outcome(request: Facts) -> Facts:
    """Run a trial in this process; return its verdict without the seconds."""
    try:
        module, _, function = request["trial"].partition(":")
        trial: Callable[..., Facts] = getattr(importlib.import_module(module), function)
        facts = trial(device=torch.device(request["device"]), **request["options"])
        # What JSON cannot hold is an error here, not where the answer is read.
        facts = json.loads(json.dumps(facts))
    # Whatever a device or a compiler raises is an answer.
    except Exception as error:  # noqa: BLE001
        return {"ok": False, "reason": describe_error(error), "facts": {}}
    return {"ok": True, "reason": str(facts.get("reason", "passed")), "facts": facts}


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
        output.write(json.dumps(_outcome(json.load(sys.stdin))))
    end_rank(FINISHED)


def child_environment() -> dict[str, str]:
    """Return the environment of a child process: this one's modules, and no rank of the run."""
    ranks = {name for names in RANK_VARIABLES for name in names}
    ranks |= {LAUNCHER, "TORCHELASTIC_USE_AGENT_STORE"}
    kept = {name: value for name, value in os.environ.items() if name not in ranks}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _ask_child(request: Facts, limit: float, place: Mapping[str, str] = {}) -> Facts:
    """Let a child process answer within `limit` seconds; return its verdict, or what ended it.

    `place` are variables that make it one of several ranks.
    """
    facts: Any = None
    try:
        environment = {**child_environment(), **place}
        end = run_child(CHILD_PROGRAM, limit, json.dumps(request), environment)
        reason = _reason(end, limit)
        with contextlib.suppress(ValueError):
            facts = json.loads(end.output)
    except OSError as error:
        reason = f"no process could be started ({error.strerror}); memory may be full"
    if not reason and _is_verdict({"seconds": 0.0, **facts} if facts else None):
        return facts  # type: ignore[no-any-return]
    if not reason and isinstance(facts, dict) and isinstance(facts.get("reason"), str):
        # A verdict that is not worth keeping.
        return {"ok": False, "reason": facts["reason"], "facts": {}}
    return {"ok": False, "reason": reason or "its answer cannot be read", "facts": {}}


def _reason(end: ChildEnd, limit: float) -> str:
    """Return what ended a child process, or an empty text where it finished."""
    if end.status is None:
        return f"not done within {limit:g} s"
    if end.status == -signal.SIGKILL:
        return "its process was killed (SIGKILL); memory may be full"
    lines = [line.strip() for line in end.errors.splitlines()]
    cause = [f": {line}" for line in lines if "rror" in line or "ssertion" in line][-1:]
    return f"its process {end}{''.join(cause)}"[:LONGEST_REASON] if end.status else ""
