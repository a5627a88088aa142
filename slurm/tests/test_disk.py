"""The functions of slurm/lib.sh that need no SLURM, run by bash."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import run_program, write_program

ROOT = Path(__file__).parents[2]
Done = subprocess.CompletedProcess[str]
HOSTILE = "a b'c\"d\na[$(touch x)]`y`;*\\"


@pytest.fixture
def bash(tmp_path: Path) -> Callable[..., Done]:
    """Runs a line of bash after the functions; WORK is the folder local, OUT is the folder shared."""
    (tmp_path / "local" / "run").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    work = f"WORK={tmp_path}/local OUT={tmp_path}/shared FILE= RESERVE=0 SLURM_JOB_ID=7"
    functions = (ROOT / "slurm" / "lib.sh").read_text()
    (tmp_path / "functions").write_text(f"set -uo pipefail; {work}\n{functions}")

    def run(words: str, *arguments: object, path: str = os.environ["PATH"]) -> Done:
        line = f". ./functions; {words}"
        options = {"cwd": tmp_path, "env": {"PATH": path}, "status": None}
        return run_program("bash", "-c", line, "bash", *arguments, **options)

    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The run on the local disk."""
    return tmp_path / "local" / "run"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The run on shared storage."""
    return tmp_path / "shared"


@pytest.fixture
def other_cp(tmp_path: Path) -> Callable[[str], str]:
    """Puts another `cp` first on the path, and returns that path."""
    name = tmp_path / "tools" / "cp"
    return lambda text: f"{write_program(name, text).parent}:{os.environ['PATH']}"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def checkpoint(step: str) -> set[str]:
    return {f"checkpoints/{step}/{name}" for name in ("manifest.json", "tensors")}


def test_stage_out(bash, run, shared, tmp_path):
    for step in ("step-1", "step-2"):
        write(run / "checkpoints" / step, **{"manifest.json": step, "tensors": step})
    write(run / "checkpoints" / ".partial~step-3", tensors="incomplete")
    write(run, **{"run.json": "1", "metrics.jsonl": "1", ".lock": "", HOSTILE: "x"})
    write(shared / "checkpoints" / ".partial-6-step-0", tensors="incomplete")
    done = bash("stage_out")
    assert (done.returncode, done.stderr) == (0, "")
    whole = checkpoint("step-1") | checkpoint("step-2")
    assert names(shared) == {*whole, "run.json", "metrics.jsonl", HOSTILE}
    # The run finishes: it removes its checkpoints and writes its model and metrics.json.
    before = (shared / "run.json").stat()
    shutil.rmtree(run / "checkpoints")
    write(run / "model", **{"manifest.json": "m", "weights": "w"})
    write(run, **{"metrics.jsonl": "2", "metrics.json": "{}"})
    assert bash("stage_out").returncode == 0
    whole = {"model/manifest.json", "model/weights"}
    assert names(shared) == {*whole, "run.json", "metrics.jsonl", "metrics.json", HOSTILE}
    assert (shared / "metrics.jsonl").read_text() == "2"
    now = (shared / "run.json").stat()
    assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "it is equal"
    write(run / "model", **{"manifest.json": "n", "weights": "v"})
    assert bash("stage_out").returncode == 0
    assert (shared / "model" / "weights").read_text() == "v"
    assert not (tmp_path / "x").exists()


def test_metrics_json_comes_last_and_nothing_is_removed_before(bash, other_cp, run, shared):
    """If a model cannot be copied, the checkpoint stays and the run does not look finished."""
    write(shared / "checkpoints" / "step-1", **{"manifest.json": "1", "tensors": "1"})
    write(run / "model", **{"manifest.json": "m", "weights": "w"})
    write(run, **{"run.json": "1", "metrics.json": "{}"})
    path = other_cp('case "$*" in *model*) echo full >&2; exit 1;; esac\nexec /bin/cp "$@"')
    done = bash("stage_out", path=path)
    assert done.returncode == 1
    assert "shared/model could not be written" in done.stderr
    assert names(shared) == {*checkpoint("step-1"), "run.json"}


def test_a_kill_during_a_copy_leaves_nothing_incomplete(bash, other_cp, run, shared, tmp_path):
    write(run / "checkpoints" / "step-1", **{"manifest.json": "1", "tensors": "x" * 1000})
    command = ["bash", "-c", f". {tmp_path}/functions; stage_out"]
    path = other_cp('mkdir "$3"; echo incomplete > "$3/tensors"; touch here; sleep 60')
    options = {"cwd": tmp_path, "env": {"PATH": path}}
    process = subprocess.Popen(command, start_new_session=True, **options)
    while not (run / "here").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (run / "here").unlink()
    assert not (shared / "checkpoints" / "step-1").exists()
    assert bash("stage_out").returncode == 0
    assert names(shared) == checkpoint("step-1")


def test_a_checkpoint_that_is_removed_while_it_is_copied_is_left_out(bash, other_cp, run, shared):
    write(run / "checkpoints" / "step-1", **{"manifest.json": "1", "tensors": "1"})
    assert bash("stage_out", path=other_cp('rm -r "$2"; mkdir "$3"')).returncode == 0
    assert names(shared) == set()


def test_stage_in(bash, tmp_path):
    source = tmp_path / HOSTILE
    write(source / "model", weights="w", **{".lock": ""})
    words = 'copy_in "$1" "$WORK/in/model/pre"'
    copy = tmp_path / "local" / "in" / "model" / "pre" / "model" / "weights"
    done = bash(words, source)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sha256" in done.stdout
    assert copy.read_text() == "w"
    assert "exists already" in bash(words, source).stdout
    (source / "model" / "weights").write_text("longer")
    assert "sha256" in bash(words, source).stdout
    assert copy.read_text() == "longer"
    assert "is missing or may not be read" in bash(words, tmp_path / "nothing").stderr
    assert bash('check_space "$WORK" 0 "$1"', source).returncode == 0
    assert not (tmp_path / "x").exists(), "no part of a name is executed"
    done = bash(f'check_space "$WORK" {2**60} "$1"', source)
    assert done.returncode == 1
    assert "are needed" in done.stderr


def test_a_copy_that_differs_is_refused(bash, other_cp, tmp_path):
    write(tmp_path, table="x")
    path = other_cp('echo changed > "$3"')
    done = bash('copy_in "$1" "$WORK/in/table"', tmp_path / "table", path=path)
    assert done.returncode == 1
    assert "differs from it" in done.stderr
    assert not (tmp_path / "local" / "in" / "table").exists()


def test_a_start_copies_the_run_so_far(bash, run, shared):
    write(run, stale="x")
    write(shared / "checkpoints" / "step-1", tensors="1")
    write(shared / "checkpoints" / ".partial-6-step-2", tensors="incomplete")
    write(shared / "slurm", log="x")
    write(shared, **{"run.json": "1"})
    done = bash("SOURCES=() TARGETS=(); stage_in")
    assert (done.returncode, done.stderr) == (0, "")
    assert names(run) == {"run.json", "checkpoints/step-1/tensors"}


def test_pages_of_copied_files_are_dropped(bash, tmp_path):
    """On an APU the page cache lies in the memory of the GPU (ROCm/amdgpu #186)."""
    if shutil.which("fincore") is None:
        pytest.skip("fincore of util-linux counts cached pages")
    write(tmp_path / "study")
    file = tmp_path / "study" / HOSTILE
    file.write_bytes(os.urandom(2**22))

    def cached() -> int:
        words = ("--bytes", "--noheadings", "--output=RES", file)
        return int(run_program("fincore", *words, status=None).stdout or 0)

    assert cached() > 0
    assert bash('drop_cached "$1" "$2"', tmp_path / "study", tmp_path / "nowhere").returncode == 0
    assert cached() == 0
    assert file.stat().st_size == 2**22


def test_the_first_step_of_a_job_checks_the_devices_of_a_site_with_gpus(bash, tmp_path):
    write_program(tmp_path / "containers" / "run", 'echo "$@" >called; cat >>called; exit 7')
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "first_tensor.py").write_text("the program")
    settings = (
        f"AAM={tmp_path} PYTHON=bash IMAGE=image ENTER=(--nv) INSIDE=python DEVICES=4 MASKS=0x1"
    )
    called = tmp_path / "local" / "called"
    assert bash(f"DEVICE=cpu {settings}; first_tensor").returncode == 0
    assert not called.exists()
    assert bash(f"DEVICE=hip {settings}; first_tensor").returncode == 7
    expected = "--nv image python - hip 4 0x1\nthe program"
    assert called.read_text() == expected


@pytest.mark.parametrize(
    ("device", "listed", "name", "seen"),
    [
        ("hip", "", "ROCR_VISIBLE_DEVICES", "2"),
        ("hip", "4,5,6,7", "ROCR_VISIBLE_DEVICES", "6"),
        ("cuda", "1,3,5", "CUDA_VISIBLE_DEVICES", "5"),
    ],
)
def test_a_task_that_works_by_itself_sees_one_device(bash, device, listed, name, seen):
    others = "" if device == "cuda" else "CUDA_VISIBLE_DEVICES=9,9,9"
    given = f"export {name}={listed} {others};"
    show = f'use_own_device; echo "${name} ${{CUDA_VISIBLE_DEVICES:-none}} $SLURM_NTASKS $AAM_SHARE_FOLDS"'
    done = bash(f"EACH=cv DEVICE={device} SLURM_LOCALID=2 SLURM_NTASKS=4; {given} {show}")
    assert done.stdout.split() == [seen, seen if device == "cuda" else "none", "1", "1"]


SHARED = """\
export SLURM_NODEID={node} SLURM_NNODES={nodes} SLURMD_NODENAME=n
own={task} EACH=fold VALUES=(a b c d e) OPTION=(--test-fold); share ./run
"""


@pytest.fixture
def shared_tasks(tmp_path: Path) -> Callable[..., tuple[list[int], list[str]]]:
    """Runs tasks that share five folds, each with a program; gives statuses and folds taken."""

    def run(text: str, tasks: list[tuple[int, int]], nodes: int = 1) -> tuple[list[int], list[str]]:
        folder = tmp_path / "node"
        program = write_program(folder / "run", text)
        running = []
        for node, task in tasks:
            work = tmp_path / f"work{node}"
            (work / "taken").mkdir(parents=True, exist_ok=True)
            line = f". {ROOT / 'slurm' / 'lib.sh'}; WORK={work}; "
            command = ["bash", "-c", line + SHARED.format(node=node, nodes=nodes, task=task)]
            running.append(subprocess.Popen(command, cwd=program.parent, text=True))
        statuses = [process.wait(timeout=60) for process in running]
        return statuses, sorted((folder / "done").read_text().split())

    return run


def test_tasks_share_folds_and_no_fold_is_run_twice(shared_tasks):
    text = 'sleep 0.1; echo "$2 $4" >>done'
    statuses, done = shared_tasks(text, [(0, task) for task in range(4)])
    assert statuses == [0] * 4
    assert done == sorted([*"abcde", *(f"run/fold-{fold}" for fold in "abcde")])


def test_nodes_divide_the_folds(shared_tasks):
    statuses, done = shared_tasks("echo $4 >>done", [(0, 0), (1, 0)], nodes=2)
    assert (statuses, done) == ([0, 0], list("abcde"))


def test_the_worst_status_of_the_shared_folds_counts(shared_tasks):
    text = "echo $4 >>done; [ $4 != b ] || exit 85; [ $4 != d ] || kill -KILL $$"
    statuses, done = shared_tasks(text, [(0, 0)])
    assert (statuses, done) == ([137], list("abcde"))


def test_after_a_warning_no_further_fold_is_begun(bash, tmp_path):
    loop = 'trap "exit 85" USR2; touch ready-$4; while :; do sleep 0.05; done'
    write_program(tmp_path / "run", loop)
    line = "(until [ -e ready-a ]; do sleep 0.05; done; kill -USR2 $$) & "
    line += SHARED.format(node=0, nodes=1, task=0)
    (tmp_path / "local" / "taken").mkdir()
    done = bash(line)
    assert done.returncode == 85
    assert [path.name for path in tmp_path.glob("ready-*")] == ["ready-a"]


@pytest.mark.parametrize(
    ("status", "saved", "terminated", "goes_on"),
    [
        (85, False, "", True),
        (140, False, "", True),
        (137, True, "", True),
        (137, False, "", False),
        # What SLURM 22.05 shows of a job that was cancelled, or preempted with and without grace.
        (85, True, "JobState=COMPLETING PreemptTime=None", False),
        (85, True, "JobState=RUNNING PreemptTime=2026-11-28T08:12:40", True),
        (85, True, "JobState=COMPLETING PreemptTime=2026-11-28T08:13:48", True),
        (143, True, "JobState=COMPLETING PreemptTime=2026-11-28T08:13:48", False),
        # Preempted by a site that requeues, which SLURM has done already.
        (85, True, "JobState=COMPLETING Restarts=1", False),
        (1, True, "", False),
        (0, True, "", False),
    ],
)
def test_a_killed_job_starts_again_only_with_something_new(
    bash, tmp_path, status, saved, terminated, goes_on
):
    write(tmp_path / "shared" / "checkpoints" / "step-1", **{"manifest.json": "1"})
    new = tmp_path / "shared" / "checkpoints" / "step-2"
    later = f"mkdir {new}; echo 2 >{new}/manifest.json;" if saved else ""
    tool = write_program(tmp_path / "tools" / "scontrol", f"echo 'JobId=7 {terminated}'")
    settings = f"status={status} ended={terminated and 'yes'} JOB=7 PATH={tool.parent}:$PATH"
    done = bash(f"{settings} saved_before=$(newest_saved); sleep 0.01; {later} may_go_on")
    assert done.returncode == (0 if goes_on else 1)
    assert ("often for lack of memory" in done.stderr) == (status == 137 and not saved)


KILLED = "node1: tasks 0-1: Killed"
SAVED = "node1: task 3: Exited with exit code 85"


@pytest.mark.parametrize(
    ("said", "first"),
    [
        (["node2: task 2: Exited with exit code 1", KILLED], "node2 1"),
        ([SAVED, "node2: tasks 0,2-3: Exited with exit code 2", KILLED], "node2 2"),
        # The others fail because the first is gone: what counts is that it was killed.
        (["node2: task 2: Killed", "node1: task 0: Exited with exit code 1"], "node2 Killed"),
        (["node2: task 2: Out Of Memory", KILLED], "node2 Out Of Memory"),
        ([SAVED], ""),
        ([], ""),
    ],
)
def test_the_first_failure_is_told_from_what_srun_killed(bash, tmp_path, said, first):
    """Lines as SLURM 22.05 writes them, between those of the tasks."""
    lines = [f"srun: error: {line}" for line in said]
    text = "\n".join(["Error: task 9: Exited with exit code 7", *lines, "srun: First task exited"])
    (tmp_path / "said").write_text(f"{text}\n")
    assert bash("said=said; first_failure").stdout.strip() == first


def test_an_image_that_changed_after_the_submission_is_refused(bash, tmp_path):
    (tmp_path / "image.sif").write_text("x")
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    settings = f"IMAGE_FILES=({tmp_path}/image.sif) IMAGE_SHA256=({digest})"
    assert bash(f"{settings}; check_image").returncode == 0
    (tmp_path / "image.sif").write_text("y")
    done = bash(f"{settings}; check_image")
    assert done.returncode == 1
    assert "has changed since the job was submitted; submit it again" in done.stderr
