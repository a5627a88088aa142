"""Is this image what its lock says, and does it compute? Passes without a GPU; a visible GPU must compute right.

Run as `%test` when an image is built, and any time later:
containers/run IMAGE python /opt/aam/selftest.py [--json FILE] [--need-device]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

import torch
from packaging.requirements import Requirement

LOCK = Path(__file__).with_name("lock.txt")
MODULES = ("torch", "numpy", "scipy", "pandas", "biom", "skbio", "h5py", "sklearn", "safetensors", "tyro", "rich")
MODULES += ("tensorboard", "matplotlib", "jaxtyping", "aam", "aam.cli.main")
# Largest error of attention against float64; a back end that is wrong with a mask is off by more than 1.
TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-1}


def check_packages() -> dict[str, object]:
    """Every line of the lock that holds here is installed in exactly that version."""
    text = LOCK.read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^(\w\S*==[^\\\n]+)", text)
    wanted = [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate()]
    wrong = []
    for each in wanted:
        version = str(each.specifier).removeprefix("==")
        found = next((d.version for d in metadata.distributions(name=each.name)), "not installed")
        if found != version:
            wrong.append(f"{each.name}: {found}, the lock says {version}")
    assert not wrong, wrong
    return {"python": sys.version.split()[0], "packages": len(wanted), "aam": metadata.version("aam")}


def check_imports() -> dict[str, object]:
    """Everything that is used can be imported, from the environment and nowhere else."""
    for name in MODULES:
        __import__(name)
    place = sys.modules["aam"].__file__ or ""
    assert place.startswith(sys.prefix), f"aam was imported from {place}, expected it under {sys.prefix}"
    return {"modules": len(MODULES)}


def check_runtime() -> dict[str, object]:
    """torch is built for what the lock names: a HIP version, a CUDA version, or none."""
    kind, _, version = re.search(r"(?m)^# runtime: (.+)$", LOCK.read_text(encoding="utf-8"))[1].partition(" ")
    built = {"hip": torch.version.hip, "cuda": torch.version.cuda}
    for name, found in built.items():
        right = (found or "").startswith(version) and bool(found) if name == kind else found is None
        assert right, f"torch {torch.__version__} is built for {built}, the lock says {kind} {version}"
    return {"torch": torch.__version__, **built}


def check_compiler() -> dict[str, object]:
    """A C compiler and Python's headers are there: Triton compiles while a program runs."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "check.c"
        source.write_text("#include <Python.h>\nint main(void) { return 0; }\n")
        headers = sysconfig.get_paths()["include"]
        subprocess.run(["gcc", f"-I{headers}", "-c", str(source), "-o", f"{folder}/check.o"], check=True)
    return {"headers": headers}


def check_training() -> dict[str, object]:
    """The command line simulates a study and trains on it, on the CPU; no loss is lost."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study"
        aam = [sys.executable, "-m", "aam"]
        calls = [["simulate", "--output-dir", str(study), "--samples", "24"]]
        calls += [
            ["pretrain", "--table", str(study / "table.biom"), "--tree", str(study / "tree.nwk"), "--epochs", "1"]
        ]
        calls[1] += ["--output-dir", f"{folder}/pre", "--device", "cpu", "--embedding-dim", "32", "--batch-size", "8"]
        for call in calls:
            done = subprocess.run([*aam, *call], cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        rows = [json.loads(line) for line in (Path(folder) / "pre/metrics.jsonl").read_text().splitlines()]
    losses = [value for row in rows for name, value in row.items() if "loss" in name and isinstance(value, float)]
    assert losses, rows
    assert all(map(math.isfinite, losses)), rows
    return {"losses": len(losses)}


def gate(device: torch.device, dtype: torch.dtype, masked: bool) -> float:
    """Largest error of attention, forward and backward, against float64 on the CPU."""
    from aam.runtime.attention import scaled_dot_product_attention

    generator = torch.Generator().manual_seed(0)
    *inputs, weight = torch.randn(4, 4, 4, 96, 32, generator=generator, dtype=torch.float64).to(dtype).double()
    mask = (torch.arange(96) < torch.tensor([96, 60, 33, 7])[:, None])[:, None, None, :] if masked else None
    results = []
    for place, kind in ((torch.device("cpu"), torch.float64), (device, dtype)):
        leaves = [each.to(place, kind).requires_grad_() for each in inputs]
        out = scaled_dot_product_attention(*leaves, None if mask is None else mask.to(place))
        (out * weight.to(place, kind)).sum().backward()
        results.append([each.detach().double().cpu() for each in (out, *(leaf.grad for leaf in leaves))])
    return max((found - exact).abs().max().item() for exact, found in zip(*results, strict=True))


def check_devices() -> dict[str, object]:
    """Every visible GPU passes the attention gate; none is fine."""
    report: dict[str, object] = {}
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        errors = {}
        for name, allowed in TOLERANCE.items():
            for masked in (False, True):
                error = gate(device, getattr(torch, name), masked)
                errors[f"{name}{', masked' if masked else ''}"] = error
                assert error < allowed, f"attention on {device} in {name}, masked {masked}: off by {error:.3g}"
        report[str(device)] = {"name": torch.cuda.get_device_name(device), "attention errors": errors}
    return report


def main() -> int:
    """Run the checks, print one line for each; exit status 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--need-device", action="store_true", help="fail when no GPU is visible")
    options = parser.parse_args()
    report: dict[str, object] = {}
    failed = []
    for check in (check_packages, check_imports, check_runtime, check_compiler, check_training, check_devices):
        name = check.__name__.removeprefix("check_")
        try:
            report[name] = check()
            print(f"{name}: {report[name]}", flush=True)
        except Exception as error:  # noqa: BLE001 - all checks run, each failure is printed
            failed.append(name)
            report[name] = {"failed": f"{type(error).__name__}: {error}"}
            print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
    if options.need_device and not report["devices"]:
        failed.append("devices")
        print("devices: FAILED: no GPU is visible to torch", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps({"failed": failed, **report}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as caches:
        os.environ |= {"OMP_NUM_THREADS": "1", "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", caches)}
        sys.exit(main())
