"""Makes writes of a run fail, one after the other, and checks that nothing damaged is ever left or
loaded.

``python tests/faults/faults.py FOLDER`` does so for every call that changes a file during a
pretraining and a training run: with a full disk (all calls from that one on), with a faulty disk
and without permission (that call only). After each the run is called again without faults; it must
end as one that was never disturbed. Commands that write one file or folder must leave what stood
there before. Needs a C compiler. Exit status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "AAM_FAULTS"
BOTH = ("pretrain", "train")
# Which error, whether all later calls fail too, what is said of it, and the exit status unless the
# call is lost only.
FAULTS = {
    "ENOSPC": (errno.ENOSPC, 1, "No space left on device", 1),
    "EIO": (errno.EIO, 0, "Input/output error", 1),
    "EACCES": (errno.EACCES, 0, "Permission denied", 2),
}


def loaded() -> ctypes.CDLL:
    """The library that makes calls fail; the first time this process starts anew with it."""
    if LIBRARY not in os.environ:
        library = Path(os.environ.get("TMPDIR", "/tmp")) / f"aam-failing-{os.getpid()}.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "failing.c", "-ldl"]
        subprocess.run(command, check=True)
        environment = {**os.environ, LIBRARY: str(library), "LD_PRELOAD": str(library)}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    return ctypes.CDLL(os.environ[LIBRARY])


class Faulty:
    """Calls a command whose N-th call that changes a file at some place fails."""

    def __init__(self, folder: Path, place: Path, faults: ctypes.CDLL) -> None:
        self.log, self.counted = folder / "log", folder / "calls"
        self.place, self.faults = place, faults

    def __call__(self, words: list[str], at: int = 0, error: int = 0, rest: int = 0) -> int:
        """Return the exit status."""
        from tests.faults.kills import call

        self.log.unlink(missing_ok=True)
        arm = lambda: self.faults.arm(str(self.place).encode(), at, error, rest)  # noqa: E731
        count = lambda: self.counted.write_text(str(self.faults.calls()))  # noqa: E731
        return call(words, self.log, first=arm, last=count)

    def total(self, words: list[str]) -> int:
        """Call without a fault, and return how many calls change files."""
        assert self(words) == 0, self.log.read_text()
        return int(self.counted.read_text())

    def is_explained(self, fault: str, status: int) -> bool:
        """Whether status and message are those of a fault."""
        _, _, message, failed = FAULTS[fault]
        text = self.log.read_text()
        return "Traceback" not in text and (status == 0 or (status == failed and message in text))


def check(name: str, words: list[str], folder: Path, faults: ctypes.CDLL, every: int) -> bool:
    """Whether the run survives a fault in each `every`-th of its calls."""
    from aam.engine.checkpoint import load_latest
    from tests.faults.kills import contents

    output, whole, same = folder / name, folder / f"whole-{name}", True
    words, faulty = [*words, "--output-dir", str(output)], Faulty(folder, output, faults)
    total = faulty.total(words)
    output.rename(whole)
    expected = contents(whole)
    print(f"{name}: {total} calls that change files", flush=True)
    for fault, (error, rest, _, _) in FAULTS.items():
        statuses: Counter[int] = Counter()
        for at in range(1, total + 1, every):
            status = faulty(words, at, error, rest)
            is_right, text = faulty.is_explained(fault, status), faulty.log.read_text()
            load_latest(output / "checkpoints")
            damaged = [str(path) for path in output.rglob("damaged-*")]
            again = faulty(words) if status else 0
            files = contents(output) if status else expected
            differing = sorted(n for n in {**files, **expected} if files.get(n) != expected.get(n))
            if not is_right or again or differing or damaged:
                found = f"status {status}, {again}; {differing}; {damaged}"
                print(f"{name} {fault} at call {at}: {found}\n{text}", flush=True)
                same = False
            statuses[status] += 1
            shutil.rmtree(output, ignore_errors=True)
        print(f"{name} {fault}: exit statuses {dict(statuses)}", flush=True)
    return same


def outputs(folder: Path) -> dict[str, str]:
    """Words of the commands that write one file or one folder, by its name."""
    study, model = folder / "study", folder / "whole-train" / "model"
    unifrac = f"unifrac --table {study}/table.biom --tree {study}/tree.nwk --threads 1"
    applied = f"--model {model} --table {study}/table.biom --threads 1"
    network = applied.replace(str(model), str(model.with_name("last")))
    return {
        **{f"d{suffix}": f"{unifrac} --output" for suffix in (".h5", ".tsv")},
        "faith.tsv": f"{unifrac} --unifrac-metric faith_pd --output",
        "predictions.tsv": f"predict {applied} --output",
        "embedded": f"embed {network} --output-dir",
        "evaluated": f"evaluate {applied} --metadata {study}/metadata.tsv --output-dir",
    }


def check_output(name: str, words: str, folder: Path, faults: ctypes.CDLL, every: int) -> bool:
    """Whether the old output stays as it was, to the letter, when its replacement fails."""
    from tests.faults.kills import contents

    place, same = folder / "out", True
    faulty, command = Faulty(folder, place, faults), [*words.split(), str(place / name)]
    command.append("--overwrite")
    total = faulty.total(command)
    before = contents(place)
    for fault, (error, rest, _, _) in FAULTS.items():
        for at in range(1, total + 1, every):
            status = faulty(command, at, error, rest)
            files = contents(place)
            if not faulty.is_explained(fault, status) or files != before:
                found = f"status {status}, {sorted(files)}\n{faulty.log.read_text()}"
                print(f"{name} {fault} at call {at} of {total}: {found}", flush=True)
                same = False
            if files.keys() != before.keys():
                shutil.rmtree(place)
                faulty(command)
    print(f"{name}: {total} calls, {'as before' if same else 'WRONG'}", flush=True)
    shutil.rmtree(place)
    return same


def run(folder: Path, every: int) -> bool:
    """Both runs of `kills.py`, and the commands that write one output."""
    faults = loaded()
    sys.path.insert(0, str(HERE.parents[1]))
    import torch

    from aam.data.simulate import simulate
    from tests.faults.kills import commands

    torch.set_num_threads(1)
    simulate(folder / "study", samples=60, depth=1_000)
    runs = commands(folder, 2, BOTH).items()
    results = [check(name, words, folder, faults, every) for name, words in runs]
    commands_of_one = outputs(folder).items()
    results += [check_output(name, words, folder, faults, every) for name, words in commands_of_one]
    return all(results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder")
    parser.add_argument("--every", type=int, default=1, help="make each N-th call fail")
    chosen = parser.parse_args()
    sys.exit(not run(chosen.folder, chosen.every))
