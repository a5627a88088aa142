"""Environment variables that are set or unset before torch is imported; the first tensor of a
device in a child process, which may crash without harm.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from aam.device import environment as module
from aam.device.environment import cache_folder, first_tensor, required_changes, usable_shared_cache
from aam.device.measure import near_free_memory

HIP = "6.3.42134"


CUDA, ROCR, HIPS = (f"{name}_VISIBLE_DEVICES" for name in ("CUDA", "ROCR", "HIP"))
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
BLAS, TUNABLE = "TORCH_BLAS_PREFER_HIPBLASLT", "PYTORCH_TUNABLEOP_ENABLED"
TUNING = "PYTORCH_TUNABLEOP_TUNING"


@pytest.mark.parametrize(
    ("environment", "chip", "hip", "expected"),
    [
        ({}, "gfx942", HIP, {}),
        ({ROCR: "1"}, "gfx942", HIP, {}),
        ({CUDA: "1", HIPS: "1", ROCR: "1"}, "gfx942", HIP, {HIPS: None, CUDA: None}),
        ({CUDA: "1", ROCR: "1"}, "", None, {ROCR: None}),
        (SEGMENTS, "gfx90a", HIP, {"PYTORCH_CUDA_ALLOC_CONF": None}),
        (SEGMENTS, "gfx90a", "7.0.1", {}),
        (SEGMENTS, "", None, {}),
        ({"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}, "gfx1031", HIP, {}),
        ({BLAS: "0"}, "gfx1010", HIP, {}),
        ({BLAS: "1"}, "gfx1010", HIP, {BLAS: "0"}),
        ({TUNABLE: "1"}, "gfx942", HIP, {TUNING: "0"}),
        ({TUNABLE: "1", TUNING: "0"}, "gfx942", HIP, {}),
        ({TUNABLE: "0"}, "gfx942", HIP, {}),
        ({TUNABLE: "1"}, "", None, {}),
        ({"TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL": "1", "HSA_XNACK": "1"}, "gfx942", HIP, {}),
    ],
)
def test_required_changes(environment, chip, hip, expected):
    before = dict(environment)
    changes = required_changes(environment, [chip], hip)
    assert {change.name: change.value for change in changes} == expected
    assert environment == before


# --- what the kernel says of GPUs and processors ------------------------------------------------


def simulated_system(folder: Path, gpus: list[dict | None], cpus: dict[int, str]) -> Path:
    """A /sys with GPUs at their NUMA nodes; None is a GPU of another job."""
    nodes = folder / "class/kfd/kfd/topology/nodes"
    for number, gpu in enumerate([{"cpu_cores_count": 48, "gfx_target_version": 0}, *gpus]):
        place = nodes / str(number) / "properties"
        place.parent.mkdir(parents=True)
        if gpu is None:
            # As the kernel answers for a device outside the cgroup: the file cannot be read.
            place.mkdir()
            continue
        properties = {key: value for key, value in gpu.items() if key != "numa"}
        place.write_text("".join(f"{key} {value}\n" for key, value in properties.items()))
        if "numa" in gpu:
            address = module._pci_address(properties)
            device = folder / "bus/pci/devices" / address
            device.mkdir(parents=True, exist_ok=True)
            (device / "numa_node").write_text(f"{gpu['numa']}\n")
    for node, listed in cpus.items():
        place = folder / f"devices/system/node/node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{listed}\n")
        (place / "meminfo").write_text(f"Node {node} MemFree:  {1000 * (node + 1)} kB\n")
    return folder


def apu(numa: int, bus: int, part: int = 0) -> dict:
    location = part << 28 | bus << 8
    return {"gfx_target_version": 90402, "location_id": location, "domain": 0, "numa": numa}


COSMOS = {0: "0-23,96-119", 1: "24-47,120-143", 2: "48-71,144-167", 3: "72-95,168-191"}


def test_gpus_of_other_jobs_end_no_command(tmp_path, monkeypatch):
    system = simulated_system(tmp_path, [None, apu(1, 2), None], COSMOS)
    nodes = system / "class/kfd/kfd/topology/nodes"
    assert [bool(gpu) for gpu in module.amd_gpus(nodes)] == [False, True, False]
    monkeypatch.setattr(module.amd_gpus, "__defaults__", (nodes,))
    assert module._architectures() == ["gfx942"]
    module.prepare_environment()
    assert module.numa_nodes(system) == [1]
    assert module.numa_cpus(system)[1] == {*range(24, 48), *range(120, 144)}
    assert module.amd_gpus(tmp_path / "absent") == []


def test_devices_are_in_the_order_of_the_kernel(tmp_path):
    order = [apu(1, 2), apu(0, 1), apu(0, 1, part=1), apu(3, 9)]
    assert module.numa_nodes(simulated_system(tmp_path / "sys", order, {})) == [1, 0, 0, 3]
    assert module.numa_nodes(tmp_path / "absent") == []
    unknown = {"gfx_target_version": 90402}
    assert module.numa_nodes(simulated_system(tmp_path / "unknown", [unknown], {})) == [-1]
    # NVIDIA: PCI addresses.
    for number, (address, node) in enumerate((("0000:02:00.0", 1), ("0000:01:00.0", 0))):
        device = tmp_path / "nvidia/bus/pci/devices" / address
        card = tmp_path / "nvidia/class/drm" / f"renderD{128 + number}"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        card.mkdir(parents=True)
        (card / "device").symlink_to(device)
    assert module.numa_nodes(tmp_path / "nvidia") == [0, 1]


def test_free_memory_of_an_apu_is_that_next_to_the_process(tmp_path, monkeypatch):
    system = simulated_system(tmp_path, [], {0: "0-1", 1: "2-3"})
    for own, gpus, expected in (({0}, 2, 1000), ({2, 3}, 2, 2000), ({0, 2}, 4, 750)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, own=own: own)
        assert near_free_memory(gpus, system) == 1024 * expected
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert near_free_memory(1, tmp_path / "absent") is None
    assert near_free_memory(6, system) == 1024 * 1000 // 3


# --- caches and threads -------------------------------------------------------------------------


def test_the_cache_needs_no_home_where_it_is_named(monkeypatch):
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setenv("AAM_CACHE", "/cache")
    assert cache_folder() == Path("/cache")
    monkeypatch.delenv("AAM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/aam")


def test_caches_of_a_job_lie_on_its_own_disk_unless_they_are_set():
    folder = Path("/nvme/aam-cache-1-7")
    changes = dict(
        change[:2] for change in required_changes({"TORCH_HOME": "/m"}, [], None, folder)
    )
    assert changes["TRITON_CACHE_DIR"] == "/nvme/aam-cache-1-7/triton"
    assert len(changes) == 5
    assert "TORCH_HOME" not in changes


def test_what_compilers_made_outlives_a_job_where_storage_takes_it(tmp_path):
    job, shared = Path("/nvme/aam-cache-1-7"), tmp_path / "aam-cache"
    given = {"AAM_SHARED": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": "/own"}
    assert usable_shared_cache(given) == shared
    assert not shared.exists(), "nothing is made before it is needed"
    changes = {
        change.name: change.value for change in required_changes(given, [], None, job, shared)
    }
    assert changes["TRITON_CACHE_DIR"] == f"{shared}/triton"
    assert "TORCHINDUCTOR_CACHE_DIR" not in changes
    assert changes["MIOPEN_USER_DB_PATH"] == f"{job}/miopen", "SQLite"
    alone = {change.name for change in required_changes({}, [], None, None, shared)}
    assert alone == {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}


@pytest.mark.parametrize("place", ["missing", "a file", "read-only"])
def test_without_storage_that_takes_files_caches_stay_on_the_local_disk(
    tmp_path, monkeypatch, place
):
    places = {"missing": tmp_path / "no", "a file": tmp_path / "file", "read-only": tmp_path}
    if place == "read-only":
        # As the system answers for such a disk; root may write to any other folder.
        monkeypatch.setattr("os.access", lambda path, mode: False)
    (tmp_path / "file").write_text("")
    assert usable_shared_cache({"AAM_SHARED": str(places[place])}) is None
    assert usable_shared_cache({}) is None


def test_the_environment_is_prepared_before_torch_is_imported(plain_python, tmp_path):
    (tmp_path / "job").mkdir()
    printed = plain_python(f"""
import os, sys
os.environ |= {{"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "SLURM_JOB_ID": "7",
               "AAM_LOCAL": "{tmp_path}/job"}}
for name in ("TRITON_CACHE_DIR", "AAM_CACHE", "AAM_SHARED"):  # set in an image, or in a job
    os.environ.pop(name, None)
from aam.cli import main
from aam.device.environment import APPLIED, prepare_environment
prepare_environment()
assert "torch" not in sys.modules
print(sorted(change.name for change in APPLIED))
print(os.environ["TRITON_CACHE_DIR"])
""")
    assert "'ROCR_VISIBLE_DEVICES'" in printed or "'CUDA_VISIBLE_DEVICES'" in printed
    assert re.search(r"/job/aam-cache-\d+-7/triton$", printed.strip())


@pytest.mark.parametrize(
    ("load", "environment", "expected"),
    [(1e6, {}, "PASSIVE"), (0, {}, "None"), (1e6, {"OMP_WAIT_POLICY": "active"}, "active")],
)
def test_waiting_threads_sleep_on_a_busy_machine(plain_python, load, environment, expected):
    printed = plain_python(
        f"""if True:
        import os
        from aam.device.environment import prepare_environment
        os.environ.pop("OMP_WAIT_POLICY", None)
        os.environ |= {environment}
        os.getloadavg = lambda: ({load}, 0, 0)
        prepare_environment()
        print(os.environ.get("OMP_WAIT_POLICY"))
        """
    )
    assert printed.strip() == expected


@pytest.mark.slow
def test_threads_limit_every_pool_of_this_process_and_of_those_that_it_starts(
    every_core, plain_python
):
    printed = plain_python(
        """if True:
        import os, subprocess, sys
        from aam.device.environment import THREADS
        for name in THREADS:
            os.environ[name] = "3"
        import numpy
        import threadpoolctl

        def pools():
            return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]

        print(set(pools()) != {1} or os.cpu_count() == 1)
        from aam.options import RuntimeConfig
        from aam.device.platform import prepare_device
        prepare_device(RuntimeConfig(device="cpu", threads=1))
        import scipy.linalg, sklearn._loss, torch
        print(set(pools()), len(pools()) > 2, torch.get_num_threads())
        count = "import numpy, threadpoolctl; print({p['num_threads'] for p in threadpoolctl.threadpool_info()})"
        print(subprocess.check_output([sys.executable, "-c", count], text=True))
        """
    )
    assert printed.split("\n")[:3] == ["True", "{1} True 1", "{1}"]


# --- the first tensor of each device --------------------------------------------------------------

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)  # {}"


def test_a_healthy_device_says_nothing():
    assert first_tensor("cpu") == ""


@pytest.mark.parametrize(
    ("program", "seconds", "failure"),
    [
        (CRASH, 60, "ended with SIGSEGV"),
        (
            "raise RuntimeError('HIP error: no kernel image')",
            60,
            "RuntimeError: HIP error: no kernel image",
        ),
        ("import sys; sys.exit(3)", 60, "ended with status 3"),
        ("import time; time.sleep(60)", 0.2, "took longer than 0.2 s"),
    ],
)
def test_a_failure_is_described(program, seconds, failure):
    assert first_tensor("cuda:0", program, seconds) == failure


def test_a_child_that_cannot_be_killed_is_left(monkeypatch):
    """One that waits for a broken device is in uninterruptible sleep."""

    class Stuck(subprocess.Popen):
        def wait(self, timeout=None):
            assert timeout is not None, "a wait without end"
            if timeout == module.KILL_SECONDS:
                super().wait()
            raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr("subprocess.Popen", Stuck)
    assert first_tensor("cuda:0", "# {}", 0.1) == "took longer than 0.1 s"
