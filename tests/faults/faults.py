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
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "AAM_FAULTS"
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
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "failing.c", "-ldl"], check=True
        )
        environment = {**os.environ, LIBRARY: str(library), "LD_PRELOAD": str(library)}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    return ctypes.CDLL(os.environ[LIBRARY])


def check(name: str, words: list[str], folder: Path, faults: ctypes.CDLL, every: int) -> bool:
    """Whether the run survives a fault in each `every`-th of its calls."""
    from aam.engine.checkpoint import load_latest
    from tests.faults.kills import call, contents

    output, whole, same = folder / name, folder / f"whole-{name}", True
    counted = folder / "calls"
    words = [*words, "--output-dir", str(output)]

    def faulty(at: int, error: int, rest: int) -> tuple[int, str]:
        log = folder / "log"
        log.unlink(missing_ok=True)

        def armed() -> None:
            faults.arm(str(output).encode(), at, error, rest)

        status = call(words, log, first=armed, last=lambda: counted.write_text(str(faults.calls())))
        return status, log.read_text()

    assert faulty(0, 0, 0)[0] == 0
    output.rename(whole)
    expected, total = contents(whole), int(counted.read_text())
    print(f"{name}: {total} calls that change files", flush=True)
    for fault, (error, rest, message, failed) in FAULTS.items():
        tally: dict[str, int] = {}
        for at in range(1, total + 1, every):
            status, text = faulty(at, error, rest)
            wrong = (
                "Traceback" in text or status not in (0, failed) or (status and message not in text)
            )
            load_latest(output / "checkpoints")
            damaged = [str(path) for path in output.rglob("damaged-*")]
            again = 0 if status == 0 else faulty(0, 0, 0)[0]
            files = contents(output) if output.exists() else {}
            differing = (
                []
                if status == 0
                else sorted(n for n in {**files, **expected} if files.get(n) != expected.get(n))
            )
            if wrong or again or differing or damaged:
                print(
                    f"{name} {fault} at call {at}: status {status}, {again}; {differing}; "
                    f"{damaged}\n{text}",
                    flush=True,
                )
                same = False
            tally[str(status)] = tally.get(str(status), 0) + 1
            shutil.rmtree(output, ignore_errors=True)
        print(f"{name} {fault}: exit statuses {tally}", flush=True)
    return same


def outputs(folder: Path) -> dict[str, list[str]]:
    """Words of the commands that write one file or one folder, by its name."""
    study, model = folder / "study", folder / "whole-train" / "model"
    unifrac = f"unifrac --table {study}/table.biom --tree {study}/tree.nwk --threads 1 --output"
    applied = f"--model {model} --table {study}/table.biom --threads 1"
    return {
        **{f"d{suffix}": unifrac.split() for suffix in (".npy", ".h5", ".tsv", ".qza")},
        "faith.qza": f"{unifrac.replace('unifrac --', 'unifrac --unifrac-metric faith_pd --')}".split(),
        "predictions.tsv": f"predict {applied} --output".split(),
        "embedded": f"embed {applied} --output-dir".split(),
        "evaluated": f"evaluate {applied} --metadata {study}/metadata.tsv --output-dir".split(),
    }


def check_output(
    name: str, words: list[str], folder: Path, faults: ctypes.CDLL, every: int
) -> bool:
    """Whether what stood at the output before stays as it was, to the letter, when its replacement
    fails.
    """
    from tests.faults.kills import call, contents

    place, log, counted, same = folder / "out", folder / "log", folder / "calls", True

    def faulty(at: int, error: int, rest: int) -> tuple[int, str]:
        log.unlink(missing_ok=True)

        def armed() -> None:
            faults.arm(str(place).encode(), at, error, rest)

        again = [*words, str(place / name), "--overwrite"]
        status = call(again, log, first=armed, last=lambda: counted.write_text(str(faults.calls())))
        return status, log.read_text()

    assert faulty(0, 0, 0)[0] == 0, log.read_text()
    before, total = contents(place), int(counted.read_text())
    for fault, (error, rest, message, failed) in FAULTS.items():
        for at in range(1, total + 1, every):
            status, text = faulty(at, error, rest)
            files = contents(place)
            whole = (
                name.endswith(".qza")
                or files == before
                or (name == "d.npy" and "out/d.npy" not in files)
            )
            if (
                "Traceback" in text
                or status not in (0, failed)
                or (status and message not in text)
                or not whole
            ):
                print(
                    f"{name} {fault} at call {at} of {total}: status {status}, "
                    f"{sorted(files)}\n{text}",
                    flush=True,
                )
                same = False
            if files.keys() != before.keys():
                shutil.rmtree(place)
                faulty(0, 0, 0)
    print(f"{name}: {total} calls, {'as before' if same else 'WRONG'}", flush=True)
    shutil.rmtree(place)
    return same


def run(folder: Path, every: int) -> bool:
    """Both runs of `kills.py`."""
    faults = loaded()
    sys.path.insert(0, str(HERE.parents[1]))
    import torch

    from aam.data.simulate import simulate
    from tests.faults.kills import commands

    torch.set_num_threads(1)
    simulate(folder / "study", samples=60, depth=1_000)
    results = [
        check(name, words, folder, faults, every) for name, words in commands(folder, 2).items()
    ]
    results += [
        check_output(name, words, folder, faults, every) for name, words in outputs(folder).items()
    ]
    return all(results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder")
    parser.add_argument("--every", type=int, default=1, help="make each N-th call fail")
    chosen = parser.parse_args()
    sys.exit(not run(chosen.folder, chosen.every))
