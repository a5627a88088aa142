"""Kills a run at random instants, starts it again until it ends, and compares it with one never
disturbed.

``python tests/faults/kills.py FOLDER --kills 200`` does so for a pretraining and a training run on
a simulated study; ``--runs cv default ranks`` for a cross-validated training run with a network,
for one as `aam train` makes it without options, and for a pretraining run of one process for each
core. Every call is a forked process, so that none has to import torch anew (ranks do), and saves
after each step, so that many kills fall into a save. Exit status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import aam.api.training  # noqa: F401
from aam.cli import main
from aam.data.simulate import simulate

SMALL = "--embedding-dim 16 --attention-heads 2 --attention-layers 1 --batch-size 8"
SMALL += " --rarefy-depth 300"
PLAIN = "--validation-size 0.2 --seed 1 --threads 1 --device cpu --deterministic"
SIDES = f"--test-size 0.2 {PLAIN}"
BOTH = ("pretrain", "train")
ALL = (*BOTH, "cv", "default", "ranks")
Hook = Callable[[], object]
AGAIN = "--resume-from auto --checkpoint-minutes 0"
# What may differ between two runs of one commit and one output folder: times, how often a run was
# called.
TIMES = r'"(started|seconds|samples_per_s)": [^,}\n]+(, )?'
# The same in the words of a report.
SAID = r"\d{4}-\d\d-\d\dT[\d:]+[+-]\d{4}(, [^<,]+ until this report|; resumed [^<]+ is given)?"
CLOCK = re.compile(rf'{TIMES}|,\n "resumed": \[.*?\n \]|{SAID}', re.DOTALL)


def commands(folder: Path, epochs: int, names: Sequence[str]) -> dict[str, list[str]]:
    """Words of these runs on the study in `folder`, without output."""
    study = f"--table {folder}/study/table.biom --metadata {folder}/study/metadata.tsv"
    columns, epoch_words = "--metadata-column ph biome", f"--epochs {epochs}"
    pretrain = f"pretrain {study} {epoch_words} --tree {folder}/study/tree.nwk {SMALL} {SIDES}"
    encoder = f"--pretrained-encoder {folder}/whole-pretrain/model --lr 1e-3 --batch-size 8"
    train = f"train {study} {columns} --patience 0 {epoch_words}"
    words = {
        "pretrain": f"{pretrain} {AGAIN}",
        "train": f"{train} {encoder} {SIDES} {AGAIN}",
        "cv": f"{train} --cv 3 {SMALL} {PLAIN} {AGAIN}",
        "default": f"train {study} {columns} --seed 1 --threads 1 --resume-from auto",
        "ranks": f"{pretrain} {AGAIN} --data-parallel",
    }
    return {name: words[name].split() for name in names}


def call(
    words: list[str],
    log: Path,
    kill_after: float | None = None,
    first: Hook = int,
    last: Hook = int,
) -> int:
    """Exit status of `aam` in a process of its own, or minus the signal that ended it; the hooks
    run in it.

    What it starts is killed with it.
    """
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        # What a run of several ranks starts again.
        sys.argv = ["aam", *words]
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        first()
        status = main(words)
        last()
        os._exit(status)
    if kill_after is not None:
        # Whichever of the two comes first makes the group.
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(child, child)
        time.sleep(kill_after)
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run by name, without `CLOCK`; TensorBoard's hold times, so that they are left
    out.
    """
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "tfevents" not in path.name:
            is_text = path.suffix in (".json", ".jsonl", ".html")
            content = CLOCK.sub("", path.read_text()).encode() if is_text else path.read_bytes()
            files[str(path.relative_to(folder))] = content
    return files


def killed(
    words: list[str], output: Path, kills: int, draw: random.Random, taken: float
) -> tuple[int, int]:
    """Call until the run ended; returns how many kills hit it and how often it began anew."""
    hits, calls, log = 0, 0, output.with_suffix(".log")
    while True:
        calls += 1
        after = draw.uniform(0, taken) if hits < kills else None
        status = call(words, log, after)
        if status == -signal.SIGKILL:
            hits += 1
        elif status == 0:
            return hits, calls
        else:
            raise SystemExit(f"call {calls} of {' '.join(words)} ended with {status}, see {log}")


def check(name: str, words: list[str], folder: Path, kills: int, draw: random.Random) -> bool:
    """Whether runs that were killed, `kills` times altogether, are as the one that was not."""
    whole, output, done, number, same = folder / f"whole-{name}", folder / name, 0, 0, True
    words, started = [*words, "--output-dir", str(output)], time.perf_counter()
    if call(words, output.with_suffix(".log")) != 0:
        raise SystemExit(f"the run never disturbed failed, see {output.with_suffix('.log')}")
    taken = time.perf_counter() - started
    output.rename(whole)
    expected = contents(whole)
    while done < kills:
        hits, calls = killed(words, output, min(kills - done, 25), draw, taken)
        files = contents(output)
        differing = sorted(n for n in {**files, **expected} if files.get(n) != expected.get(n))
        unfinished = (".partial", ".replaced", "step-")
        left = [str(path) for path in output.rglob("*") if path.name.startswith(unfinished)]
        found = f"{hits} kills, {calls} calls; differing: {differing}; left over: {left}"
        print(f"{name} {number}: {found}", flush=True)
        output.rename(folder / f"{name}-{number}")
        same &= not differing and not left
        done, number = done + hits, number + 1
    return same


def run(folder: Path, kills: int, seed: int, names: Sequence[str]) -> bool:
    """The runs of these names, each killed `kills` times."""
    torch.set_num_threads(1)
    draw = random.Random(seed)
    simulate(folder / "study", samples=60, depth=1_000)
    runs = commands(folder, 7, names).items()
    results = {name: check(name, words, folder, kills, draw) for name, words in runs}
    print(json.dumps(results))
    return all(results.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder")
    parser.add_argument("--kills", type=int, default=200, help="kills of each run")
    parser.add_argument("--runs", nargs="+", choices=ALL, default=BOTH)
    parser.add_argument("--seed", type=int, default=0, help="seed of the instants")
    chosen = parser.parse_args()
    sys.exit(not run(chosen.folder, chosen.kills, chosen.seed, chosen.runs))
