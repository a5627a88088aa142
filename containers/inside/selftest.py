"""Check an image: are the packages those of the lock, and does it compute correctly?

It passes without a GPU; a GPU that is visible must compute correctly. `%test` runs it when an image
is built. Later: containers/run IMAGE python /opt/aam/selftest.py [--json FILE] [--need-device]
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
MODULES = "torch numpy scipy pandas biom skbio h5py sklearn safetensors rich tensorboard"
MODULES += " altair vl_convert jaxtyping aam aam.cli"
# Features of one attention head, as in the default network.
ATTENTION_SHAPES = ((540, 4, 20, 24), (16, 4, 139, 24))


def check_packages() -> dict[str, object]:
    """Check that every package of the lock is installed in exactly that version."""
    text = LOCK.read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^(\w\S*==[^\\\n]+)", text)
    requirements = [
        line for line in map(Requirement, lines) if line.marker is None or line.marker.evaluate()
    ]
    differences = []
    for requirement in requirements:
        version = str(requirement.specifier).removeprefix("==")
        distributions = metadata.distributions(name=requirement.name)
        installed = next((distribution.version for distribution in distributions), "not installed")
        if installed != version:
            differences.append(f"{requirement.name}: {installed}, the lock has {version}")
    assert not differences, differences
    return {
        "python": sys.version.split()[0],
        "packages": len(requirements),
        "aam": metadata.version("attention-all-microbes"),
    }


def check_imports() -> dict[str, object]:
    """Check that all modules can be imported, and that aam comes from the environment."""
    for name in MODULES.split():
        __import__(name)
    if "aam-16s" in {found.metadata["Name"] for found in metadata.distributions()}:
        __import__("aam_16s")
    path = sys.modules["aam"].__file__ or ""
    assert path.startswith(sys.prefix), f"aam is imported from {path}, expected {sys.prefix}"
    return {"modules": len(MODULES.split())}


def check_runtime() -> dict[str, object]:
    """Check that torch is built for the runtime of the lock: a HIP version, a CUDA version, or
    none.
    """
    recorded = re.search(r"(?m)^# runtime: (.+)$", LOCK.read_text(encoding="utf-8"))[1]
    kind, _, version = recorded.partition(" ")
    built = {"hip": torch.version.hip, "cuda": torch.version.cuda}
    for name, found in built.items():
        agrees = bool(found) and found.startswith(version) if name == kind else found is None
        assert agrees, f"torch {torch.__version__} is built for {built}, the lock has {recorded}"
    return {"torch": torch.__version__, **built}


def check_compiler() -> dict[str, object]:
    """Check the compilers for C and C++ and Python's headers: Triton and inductor compile while a
    program runs.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "check.c"
        source.write_text("#include <Python.h>\nint main(void) { return 0; }\n")
        headers = sysconfig.get_paths()["include"]
        compile_c = ["gcc", f"-I{headers}", "-c", str(source), "-o", f"{folder}/check.o"]
        subprocess.run(compile_c, check=True)
        text = "#include <vector>\nint size() { return std::vector<int>(3).size(); }\n"
        source.with_suffix(".cpp").write_text(text)
        link = ["g++", "-shared", "-fPIC", f"{folder}/check.cpp", "-o", f"{folder}/check.so"]
        subprocess.run(link, check=True)
    return {"headers": headers}


def check_training() -> dict[str, object]:
    """Simulate a study and train on it on the CPU; every loss must be finite."""
    with tempfile.TemporaryDirectory() as folder:
        simulate = "aam.data.simulate study --samples 24"
        pretrain = "aam pretrain --table study/table.biom --tree study/tree.nwk --epochs 1"
        pretrain += " --output-dir pre --device cpu --embedding-dim 32 --batch-size 8"
        for words in (simulate, pretrain):
            command = [sys.executable, "-m", *words.split()]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        lines = (Path(folder) / "pre/metrics.jsonl").read_text().splitlines()
    values = [item for line in lines for item in json.loads(line).items()]
    losses = [value for name, value in values if "loss" in name and isinstance(value, float)]
    assert losses, lines
    assert all(map(math.isfinite, losses)), lines
    return {"losses": len(losses)}


def attention_errors(device: torch.device) -> dict[str, dict[str, object]]:
    """Check torch's own attention on a device by the checks of aam; return what every back end
    gave.

    The tolerances are those of `aam.device.attention`, in float32 and bfloat16, with and without a
    mask.
    """
    from aam.device.attention import SDPA, call_kind, fault, try_backends

    results = {}
    for dtype in (torch.float32, torch.bfloat16):
        for masked in (False, True):
            kind = call_kind(dtype, masked)
            results[kind] = try_backends(device, kind, ATTENTION_SHAPES)
            default = results[kind][SDPA]
            assert not fault(kind, default), f"attention on {device}, {kind}: {default}"
    return results


def check_devices() -> dict[str, object]:
    """Check attention on every visible GPU; none is fine."""
    report: dict[str, object] = {}
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        name = torch.cuda.get_device_name(device)
        report[str(device)] = {"name": name, "attention": attention_errors(device)}
    return report


CHECKS = (check_packages, check_imports, check_runtime, check_compiler, check_training)
CHECKS += (check_devices,)


def main() -> int:
    """Run all checks, print one line for each, and return 1 when one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--need-device", action="store_true", help="fail when no GPU is visible")
    options = parser.parse_args()
    report: dict[str, object] = {}
    failed = []
    for check in CHECKS:
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
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(main())
