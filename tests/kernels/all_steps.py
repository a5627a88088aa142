"""Write and compile the kernels of all steps: two tasks, two networks, two architectures.

``python all_steps.py FOLDER`` needs what `generate` and `build` need. A step that FOLDER has is not
done again. It ends with status 1 if a kernel fails, if `pretraining.py` is not what `generate`
writes now, or if `triton_helpers.py` gives other binaries than inductor's own module. ``--write``
replaces `pretraining.py` and the record ``kernels`` of docs/results.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORDS = ROOT / "docs" / "results.json"

TASKS = ("pretraining", "supervised")
NETWORKS = ("96-float32", "512-bf16")
ARCHITECTURES = ("gfx942", "gfx90a")
# The step whose kernels are kept, and compiled at every change.
KEPT = ("pretraining", "96-float32", "gfx942")
OF_INDUCTOR = "torch._inductor.runtime.triton_helpers"


def program(name: str, *words: str | Path) -> tuple[str, int]:
    """Run a program of this folder; return what it prints, and its status."""
    command = [sys.executable, str(HERE / name), *map(str, words)]
    # Inductor joins masks in the order of a set.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    return done.stdout, done.returncode


def build(module: Path, arch: str, helpers: str) -> dict[str, Any]:
    """Compile a module; return its numbers, and whether all is right as ``ok``."""
    printed, status = program("build.py", module, "--arch", arch, "--helpers", helpers)
    return {**json.loads(printed), "ok": status == 0}


def step(folder: Path, task: str, network: str, arch: str) -> dict[str, Any]:
    """Write and compile the kernels of a step, unless the folder has them."""
    module = folder / f"{task}_{network}_{arch}.py".replace("-", "_")
    numbers = module.with_suffix(".json")
    if not numbers.is_file():
        start = time.perf_counter()
        _, status = program(
            "generate.py", module, "--task", task, "--network", network, "--arch", arch
        )
        if status:
            raise SystemExit(f"generate.py ends with status {status}")
        generated = round(time.perf_counter() - start, 1)
        row = {"task": task, "network": network, "arch": arch, "generate_seconds": generated}
        row |= build(module, arch, OF_INDUCTOR)
        numbers.write_text(json.dumps(row), encoding="utf-8")
    row = json.loads(numbers.read_text(encoding="utf-8"))
    print(json.dumps(row), flush=True)
    return dict(row)


def differences(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Say in what the kept kernels and helpers differ from what inductor writes now."""
    problems = []
    generated = folder / "{}_{}_{}.py".format(*KEPT).replace("-", "_")
    kept = HERE / f"{KEPT[0]}.py"
    if kept.read_text(encoding="utf-8") != generated.read_text(encoding="utf-8"):
        problems.append(f"{kept.name} is stale: nox -s kernels_all -- --write")
    (row,) = (row for row in rows if (row["task"], row["network"], row["arch"]) == KEPT)
    if build(generated, KEPT[2], "triton_helpers")["digest"] != row["digest"]:
        problems.append(f"triton_helpers.py gives other binaries than {OF_INDUCTOR}")
    return problems


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Keep the kernels of one step, and record the numbers of all."""
    generated = folder / "{}_{}_{}.py".format(*KEPT).replace("-", "_")
    (HERE / f"{KEPT[0]}.py").write_text(generated.read_text(encoding="utf-8"), encoding="utf-8")
    git = ["git", "log", "-1", "--format=%h", "--abbrev=8", "--", "aam"]
    commit = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    records = json.loads(RECORDS.read_text(encoding="utf-8"))
    records["kernels"] = {
        "command": "nox -s kernels_all -- --write",
        "commit": commit.strip(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": f"{platform.system()}, {os.cpu_count()} cores, no GPU",
        "values": {"rows": rows},
    }
    text = json.dumps(dict(sorted(records.items())), indent=1, ensure_ascii=False) + "\n"
    RECORDS.write_text(text, encoding="utf-8")


def main() -> int:
    """Do all steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    names = itertools.product(ARCHITECTURES, TASKS, NETWORKS)
    rows = [step(given.folder, task, network, arch) for arch, task, network in names]
    if given.write:
        write(given.folder, rows)
    problems = differences(given.folder, rows)
    problems += [f"{r['task']} {r['network']} {r['arch']}: see above" for r in rows if not r["ok"]]
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
