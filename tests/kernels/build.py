"""Compile the kernels of a module for an AMD GPU with the Triton of this Python, without a GPU.

``python build.py MODULE.py --arch gfx942`` prints a line of JSON, and ends with status 1 if a
kernel does not compile, spills vector registers, uses scratch memory, or needs more local memory
than a compute unit has. `TRITON_HIP_LLD_PATH` is the linker, ld.lld. Modules come from `generate`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# What a compute unit of CDNA 2 and 3 has.
LOCAL_BYTES, REGISTERS = 64 * 1024, 512
# Numbers that the compiler writes into the assembly of a kernel.
FIELDS = {
    "vgpr": "vgpr_count",
    "vgpr_spills": "vgpr_spill_count",
    "sgpr_spills": "sgpr_spill_count",
    "scratch": "private_segment_fixed_size",
}

Row = dict[str, Any]


def numbers_of(assembly: str) -> Row:
    """Return the registers and the scratch memory of a kernel, from its assembly."""
    found = {}
    for name, field in FIELDS.items():
        match = re.search(rf"\.{field}:\s+(\d+)", assembly)
        if match is None:
            raise ValueError(f"the assembly has no .{field}")
        found[name] = int(match[1])
    return found


def problem_of(row: Row) -> str:
    """Return what is wrong with a binary; empty if nothing is."""
    if "error" in row:
        return str(row["error"])
    problems = {
        f"{row['vgpr_spills']} vector registers spilled": row["vgpr_spills"] > 0,
        f"{row['scratch']} bytes of scratch memory": row["scratch"] > 0,
        f"{row['vgpr']} vector registers of {REGISTERS}": row["vgpr"] > REGISTERS,
        f"{row['lds']} bytes of local memory of {LOCAL_BYTES}": row["lds"] > LOCAL_BYTES,
    }
    return ", ".join(text for text, is_wrong in problems.items() if is_wrong)


def summary_of(rows: list[Row], seconds: float) -> Row:
    """Return the numbers of all binaries, for a line of a table."""
    built = [row for row in rows if "error" not in row]
    digests = "".join(sorted(row["digest"] for row in built))
    return {
        "kernels": len({row["place"] for row in rows}),
        "binaries": len(rows),
        "failed": len(rows) - len(built),
        **{f"most_{name}": max((r[name] for r in built), default=0) for name in ("vgpr", "lds")},
        **{
            f"with_{name}": sum(row[name] > 0 for row in built)
            for name in ("vgpr_spills", "sgpr_spills", "scratch")
        },
        "seconds": round(seconds, 1),
        "digest": hashlib.sha256(digests.encode()).hexdigest()[:16],
    }


# --- Triton ---------------------------------------------------------------------------------------


def compiled(kernel: Any, variant: dict[str, int], arch: str) -> Any:
    """Return what Triton makes of one variant of a kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function, signature, names = kernel.function, kernel.signature, kernel.function.arg_names
    # Sizes of blocks, and sizes that are 1; the rest are options of the compiler.
    sizes = {name: value for name, value in variant.items() if name in names}
    options = {name: value for name, value in variant.items() if name not in sizes}
    target = GPUTarget("hip", arch, 64)
    if triton.__version__ < "3.2":
        types = {name: kind for name, kind in signature.items() if kind != "constexpr"}
        return triton.compile(ASTSource(function, types, sizes), target=target, options=options)
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned}
    constants = {(names.index(name),): value for name, value in sizes.items()}
    source = ASTSource(function, signature, constants, attributes)
    options = {**options, "debug": False, "sanitize_overflow": False}
    return triton.compile(source, target=target, options=options)


def build(job: tuple[int, int, str]) -> Row:
    """Compile one variant of one kernel in a process of its own."""
    from kernel import KERNELS

    place, variant, arch = job
    kernel = KERNELS[place]
    row: Row = {"place": place, "kernel": kernel.function.__name__}
    row["variant"] = kernel.variants[variant]
    try:
        binary = compiled(kernel, row["variant"], arch)
    # Whatever the compiler raises is an answer.
    except Exception as error:  # noqa: BLE001
        return {**row, "error": f"{type(error).__name__}: {error}"}
    # The launch asks for the local memory; the assembly says 0.
    row |= {"lds": binary.metadata.shared, **numbers_of(binary.asm["amdgcn"])}
    return {**row, "digest": hashlib.sha256(binary.asm["hsaco"]).hexdigest()}


def load(module: Path, helpers: str) -> None:
    """Import a module of kernels, with the helpers of that module."""
    sys.path[:0] = [str(HERE), str(module.parent)]
    sys.modules["triton_helpers"] = importlib.import_module(helpers)
    importlib.import_module(module.stem)


def build_all(arch: str, workers: int) -> tuple[list[Row], Row]:
    """Return a row for each binary of the kernels that are loaded, and their summary."""
    from kernel import KERNELS

    jobs = [
        (place, variant, arch)
        for place, kernel in enumerate(KERNELS)
        for variant in range(len(kernel.variants))
    ]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        # Nothing is taken from an earlier run, and paths of sources are in no binary.
        os.environ |= {"TRITON_CACHE_DIR": cache, "TRITON_DISABLE_LINE_INFO": "1"}
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            rows = pool.map(build, jobs, chunksize=4)
    return rows, summary_of(rows, time.perf_counter() - start)


def report(rows: Iterable[Row]) -> bool:
    """Print what is wrong, and return whether anything is."""
    wrong = [(row, problem) for row in rows if (problem := problem_of(row))]
    for row, problem in wrong:
        print(f"{row['kernel']} {row['variant']}: {problem}", file=sys.stderr)
    return bool(wrong)


def main() -> int:
    """Compile one module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("module", type=Path)
    parser.add_argument("--arch", default="gfx942")
    parser.add_argument("--helpers", default="triton_helpers", help="module of inductor's helpers")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    linker = os.environ.get("TRITON_HIP_LLD_PATH", "/opt/rocm/llvm/bin/ld.lld")
    if not Path(linker).is_file():
        parser.error(f"no linker {linker}: apt-get install lld-19, or set TRITON_HIP_LLD_PATH")
    load(given.module.resolve(), given.helpers)
    rows, summary = build_all(given.arch, given.workers)
    print(json.dumps(summary))
    return int(report(rows))


if __name__ == "__main__":
    sys.exit(main())
