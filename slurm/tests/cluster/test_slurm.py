"""Job scripts on a simulated cluster of two nodes: training, warnings, kills, crashes, requeues and
jobs that wait for others.
"""

from __future__ import annotations

import getpass
import importlib.machinery
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aam.data.simulate import simulate
from slurm.tests.cluster.conftest import HERE, ROOT, environment
from tests.programs import run_program, write_program

pytestmark = pytest.mark.cluster
SMALL = shlex.split(
    "--rarefy-depth 300 --embedding-dim 16 --attention-layers 1 --attention-heads 2"
)
SMALL += ["--threads", "1", "--batch-size", "16", "--device", "cpu"]
# Seconds of training, so that there is something to interrupt; the first checkpoint comes after 1.2
# s.
EPOCHS = 60
LONG = [*SMALL, *f"--epochs {EPOCHS} --patience 0 --checkpoint-minutes 0.02".split()]
INPUTS = ["--table", "table.biom", "--tree", "tree.nwk"]
ENDED = "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY BOOT_FAIL DEADLINE"


def local_slurm():
    """Return the module of slurm/tests/cluster/local-slurm."""
    loader = importlib.machinery.SourceFileLoader("local_slurm", str(HERE / "local-slurm"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("local_slurm", loader))
    sys.modules["local_slurm"] = module
    loader.exec_module(module)
    return module


class Site:
    """The cluster, a login node with few programs, and the files that jobs have written."""

    def __init__(self, cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir(parents=True)
        self.study = folder / "study"
        self.user = getpass.getuser()
        login = folder / "login"
        login.mkdir()
        (login / "make").symlink_to(shutil.which("make"))
        (login / "python3").symlink_to(os.path.realpath(sys.executable))
        # A job gets the environment of the user who submits it, where a real login node has the
        # usual tools.
        path = f"{os.environ['PATH']}:/usr/sbin"
        write_program(login / "sbatch", f'PATH="{path}"\nexec sbatch "$@"')
        self.variables = {"PATH": str(login), "HOME": str(folder), "LANG": "C.UTF-8"}
        self.variables |= {"AAM_PYTHON": sys.executable, "AAM_SITE": str(HERE / "site.toml")}
        self.variables |= {"AAM_SITE_SHARED": str(self.shared), **cluster.environment}
        # It chooses the kernels of NumPy's products: jobs and the processes they are compared with
        # must have the same.
        kernels = {name for name in os.environ if name.startswith("OPENBLAS_")}
        self.variables |= {name: os.environ[name] for name in kernels}

    def login(self, *words: object, status: int | None = 0, cwd: Path = ROOT, **variables: str):
        """Run a command as on a login node."""
        return run_program(*words, status=status, cwd=cwd, env={**self.variables, **variables})

    def submit(self, job: str, *words: object, before: tuple[object, ...] = (), **variables) -> str:
        """Submit a job and return its id."""
        generate = ("python3", ROOT / "slurm" / "generate", job, "--data", self.study, "--submit")
        done = self.login(*generate, *before, "--", *words, **variables)
        return done.stdout.split()[-1]

    def facts(self, job: str) -> dict[str, str]:
        """Return the fields that SLURM shows of a job."""
        line = self.cluster.call("scontrol", "show", "job", "-o", job).splitlines()[0]
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def log(self, out: str) -> str:
        """Return the logs of all jobs of a run."""
        paths = sorted((self.shared / out / "slurm").glob("*.log"))
        return "".join(path.read_text() for path in paths)

    def until(self, condition: Callable[[], object], seconds: float = 120, message=str) -> None:
        """Wait until a condition holds; fail with a message after so many seconds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, message()
            time.sleep(0.2)

    def until_logged(self, out: str, *parts: str) -> None:
        """Wait until the log of a run holds some texts."""
        said = lambda: self.log(out)  # noqa: E731
        self.until(lambda: all(part in said() for part in parts), message=said)

    def wait(self, job: str, out: str, seconds: float = 240) -> tuple[str, int]:
        """Wait for the end of a job and return its state and exit status."""
        state = lambda: f"{self.facts(job)}\n{self.log(out)}"  # noqa: E731
        self.until(lambda: self.facts(job)["JobState"] in ENDED.split(), seconds, state)
        facts = self.facts(job)
        return facts["JobState"], int(facts["ExitCode"].split(":")[0])

    def finish(self, job: str, out: str) -> None:
        """Wait for a job that must succeed."""
        assert self.wait(job, out) == ("COMPLETED", 0), self.log(out)

    def weights(self, out: str) -> dict[str, bytes]:
        """Return the weights of all models of a run."""
        folder = self.shared / out
        paths = folder.rglob("model/*.safetensors")
        weights = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        assert weights, self.log(out)
        return weights

    def assert_clean(self, out: str) -> None:
        """Assert that a finished run has no checkpoint, no incomplete copy and no writer."""
        names = [path.name for path in (self.shared / out).rglob("*")]
        assert not [name for name in names if re.search(r"step-|\.partial|writer", name)]


@pytest.fixture(scope="session")
def site(workshop: Path, once: Callable) -> Iterator[Site]:
    module = local_slurm()
    # Two workers that install packages at once stop each other.
    with once():
        module.install()
    cluster = module.Cluster(workshop / "cluster")
    cluster.folder.mkdir()
    try:
        cluster.start()
        simulated = Site(cluster, workshop / "site")
        simulate(Path(simulated.study), samples=60, asvs=120, length=60, depth=2000)
        yield simulated
    finally:
        cluster.stop()


def aam(*words: object, cwd: Path, **variables: str) -> None:
    """Run aam without SLURM."""
    variables = environment(PYTHONPATH=str(ROOT), **variables)
    run_program(sys.executable, "-m", "aam", *words, cwd=cwd, env=variables)


@pytest.fixture(scope="session")
def uninterrupted(site: Site) -> dict[str, bytes]:
    """The weights of LONG, trained without SLURM and without interruption."""
    aam("pretrain", *inputs(site), *LONG, "--output-dir", site.shared / "plain", cwd=site.folder)
    return site.weights("plain")


@pytest.fixture(scope="session")
def of_two(site: Site) -> dict[str, bytes]:
    """The weights of LONG, trained by two processes without SLURM."""
    ranks(site, ["pretrain", *inputs(site), *LONG], "two", 2)
    return site.weights("two")


def inputs(site: Site) -> list[object]:
    """Return `INPUTS` with the paths of the study."""
    return ["--table", site.study / "table.biom", "--tree", site.study / "tree.nwk"]


def tasks_of(job: str) -> list[int]:
    """Return the processes of aam that a job runs, in an image or not."""
    processes = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            variables = (path / "environ").read_bytes()
        except OSError:
            continue
        if b"--resume-from" in words and f"SLURM_JOB_ID={job}".encode() in variables.split(b"\0"):
            processes.append(int(path.name))
    return processes


def steps(folder: Path) -> list[Path]:
    """Return the checkpoints in a run."""
    return list(folder.glob("checkpoints/step-*"))


def start_long(
    site: Site, out: str, disk: str = "local/*/*", resume: bool = True, **variables: str
) -> str:
    """Submit LONG, and return when one of its checkpoints is on shared storage; the run is stopped
    meanwhile.

    Parameters
    ----------
    disk
        Where jobs' folders are in that of the cluster: ``local/*/*`` (/scratch/USER), or ``tmp/*``
        (/tmp/USER).
    resume
        False leaves the run stopped: what follows ends it.
    """
    words = [*INPUTS, *LONG, "--output-dir", out]
    job = site.submit("pretrain_single", *words, **variables)
    runs = f"{disk}/job_{job}/aam/run"
    said = lambda: site.log(out)  # noqa: E731
    site.until(lambda: any(map(steps, site.cluster.folder.glob(runs))), message=said)
    tasks = tasks_of(job)
    assert tasks, f"it ended before it was stopped: {site.log(out)}"
    for process in tasks:
        os.kill(process, signal.SIGSTOP)
    site.until(lambda: steps(site.shared / out), message=lambda: site.log(out))
    for process in tasks if resume else ():
        os.kill(process, signal.SIGCONT)
    return job


def test_the_warning_before_the_time_limit(site, uninterrupted):
    job = start_long(site, "warned")
    site.cluster.call("scancel", "--batch", "--signal=USR2", job)
    site.finish(job, "warned")
    assert site.weights("warned") == uninterrupted
    log = site.log("warned")
    assert "USR2: checkpoint, copy, requeue" in log
    assert "start 2 of at most 4" in log
    assert "continues after step" in log
    # The first start has no rate where its first epoch had not ended.
    for ended, rate in (("status 85, start 1", r"([\d.]+|no)"), ("status 0, start 2", r"[\d.]+")):
        summary = rf"summary: {ended}, waited \d+ s, ran \d+ s, {rate} samples/s, peak memory of a"
        assert re.search(summary, log), log
    site.assert_clean("warned")


# What the user of each profile sets, and where the disks of its nodes are. `none`: no image is
# needed for this.
PROFILES = {
    "cosmos": ("local/*/*", ""),
    "lumi-g": ("tmp/*", "ACCOUNT=project_1"),
    "perlmutter": ("tmp/*", "ACCOUNT=m1"),
    "generic": (
        "local/*/*",
        "ACCOUNT=none PARTITION=cluster GRES=gpu:4 LOCAL=/scratch/{user}/job_{job} MAX_HOURS=24 "
        "MAX_NODES=4",
    ),
}


def profile(site: Site, name: str) -> tuple[str, dict[str, str]]:
    """Return where a profile has its local disks, and what its user sets; `module` only says what
    it loads.
    """
    disk, values = PROFILES[name]
    (site.folder / ".bash_profile").write_text('module() { echo "module $*"; }\n')
    values = dict(word.split("=") for word in values.split())
    values = {"ENGINE": "none", "COPY_MINUTES": "0.1", "DEVICE": "cpu", **values}
    return disk, {"AAM_SITE": name, **{f"AAM_SITE_{key}": value for key, value in values.items()}}


def test_scripts_pass_shellcheck_and_sbatch(site):
    committed = [*(ROOT / "slurm").glob("*.sh"), *(ROOT / "slurm/tests/golden").glob("*.sh")]
    assert len(committed) == 10
    scripts = [path.read_text() for path in committed]
    generate = ("python3", ROOT / "slurm" / "generate")
    words = ("--data", site.study, "--", "--table", "table.biom", "--output-dir", "other")
    for name in PROFILES:
        variables = profile(site, name)[1]
        for kind in ("pretrain_node", "pretrain_multi"):
            scripts.append(site.login(*generate, kind, *words, **variables).stdout)
            site.login(*generate, kind, "--test-only", *words, **variables)
    for script in scripts:
        assert run_program("shellcheck", "-", input=script).stdout == ""


def test_nodes_that_crash(site, uninterrupted):
    """Two jobs by public profiles; both nodes lose their power, and both runs go on to the same
    bits.
    """
    jobs = {}
    for name in ("cosmos", "lumi-g"):
        disk, variables = profile(site, name)
        out = f"crashed-{name}"
        jobs[out] = start_long(site, out, disk, resume=False, **variables)
    nodes = [site.facts(job)["NodeList"] for job in jobs.values()]
    assert sorted(nodes) == ["node1", "node2"]
    for node in nodes:
        site.cluster.crash(node)
    try:
        restarts = lambda: [site.facts(job)["Restarts"] for job in jobs.values()]  # noqa: E731
        site.until(lambda: restarts() == ["1", "1"], message=lambda: str(jobs))
    finally:
        for node in nodes:
            site.cluster.boot(node)
    for out, job in jobs.items():
        site.finish(job, out)
        assert site.weights(out) == uninterrupted
        assert "continues after step" in site.log(out)
        assert ("module load singularitypro" in site.log(out)) == (out == "crashed-cosmos")
        site.assert_clean(out)
    site.cluster.wait_for_nodes()


def test_a_partition_and_gpus_that_do_not_exist(site):
    generate = ("python3", ROOT / "slurm" / "generate", "pretrain_node", "--data", site.study)
    words = (*generate, "--submit", "--", "--table", "table.biom", "--output-dir", "refused")
    done = site.login(*words, status=1, AAM_SITE_PARTITION="nowhere")
    assert "partition 'nowhere': this cluster has none of that name" in done.stderr
    done = site.login(*words, status=1, AAM_SITE_GRES="gpu:h100:4", AAM_SITE_DEVICE="hip")
    assert "gres 'gpu:h100:4'" in done.stderr
    assert "no node has them" in done.stderr
    assert not list((site.shared / "refused").glob("*.json"))


def test_a_task_that_is_killed_before_anything_is_saved(site):
    """Another start would end in the same way: short of memory, for example."""
    words = [*INPUTS, *SMALL, "--epochs", "300"]
    job = site.submit("pretrain_single", *words, "--output-dir", "hopeless")
    site.until(lambda: tasks_of(job), message=lambda: site.log("hopeless"))
    os.kill(tasks_of(job)[0], signal.SIGKILL)
    assert site.wait(job, "hopeless") == ("FAILED", 137)
    assert "killed before this start saved anything new" in site.log("hopeless")
    assert site.facts(job)["Restarts"] == "0"


def test_a_job_of_a_site_with_gpus_fails_on_a_node_without(site):
    words = [*INPUTS, *SMALL[:-2], "--epochs", "1"]
    gpus = {"AAM_SITE_DEVICE": "hip"}
    job = site.submit("pretrain_single", *words, "--output-dir", "no-gpu", **gpus)
    assert site.wait(job, "no-gpu") == ("FAILED", 1)
    assert "the site has hip devices" in site.log("no-gpu")
    assert "first tensor: see above; nothing was computed" in site.log("no-gpu")
    out = ("--output-dir", "allowed")
    job = site.submit("pretrain_single", *words, *out, before=("--allow-cpu",), **gpus)
    site.finish(job, "allowed")


def test_a_device_that_is_missing_on_one_node_is_tried_once_on_another(site):
    """A job that waits for the first one waits for the second then."""
    python = write_program(
        site.folder / "missing" / "python",
        'case "$*" in "- hip "*) [ "$SLURMD_NODENAME" != node1 ]; exit ;; esac\n'
        f'exec {sys.executable} "$@"',
    )
    gpus = {"AAM_SITE_DEVICE": "hip", "AAM_PYTHON": str(python)}
    words = [*INPUTS, *SMALL[:-2], "--epochs", "1", "--device", "cpu", "--output-dir", "elsewhere"]
    # While both nodes are free the first job gets the first.
    job = site.submit("pretrain_single", *words, **gpus)
    waiting = ["--parsable", f"--dependency=afterok:{job}", "--kill-on-invalid-dep=yes"]
    child = site.cluster.call("sbatch", *waiting, "--output=/dev/null", "--wrap=true").strip()
    assert site.wait(job, "elsewhere") == ("FAILED", 1), site.log("elsewhere")
    other = re.findall(r"job (\d+) does the same without node1", site.log("elsewhere"))[0]
    site.finish(other, "elsewhere")
    assert site.wait(child, "elsewhere")[0] == "COMPLETED"
    site.assert_clean("elsewhere")


def test_a_rank_that_fails_is_reported_and_not_those_that_were_killed(site):
    """A task that fails alone, while the others wait for it until srun kills them."""
    python = write_program(
        site.folder / "failing" / "python",
        'case "$*" in *--resume-from*) [ "$SLURM_PROCID" != 1 ] || exit 1\n'
        "    trap '' TERM; exec sleep 300 ;; esac\n"
        f'exec {sys.executable} "$@"',
    )
    words = ["pretrain_node", "--data", site.study, "--devices", "2", "--print", "--"]
    words += [*INPUTS, *SMALL, "--output-dir", "failing"]
    done = site.login("python3", ROOT / "slurm" / "generate", *words, AAM_PYTHON=str(python))
    (site.shared / "failing" / "slurm").mkdir(parents=True)
    script = site.folder / "failing" / "job.sh"
    script.write_text(done.stdout.replace("--wait=120", "--wait=3"))
    job = site.cluster.call("sbatch", "--parsable", script).strip()
    assert site.wait(job, "failing") == ("FAILED", 1), site.log("failing")
    assert "summary: status 1, start 1" in site.log("failing")


def test_requeues_are_bounded(site):
    words = ["--table", "table.biom", *LONG, "--output-dir", "bounded"]
    job = site.submit("pretrain_single", *words, AAM_SITE_MOST_REQUEUES="1")
    for start, said in (("start 1", f"epoch 1/{EPOCHS}"), ("start 2", "continues after")):
        site.until_logged("bounded", f"{start} of at most 2", said)
        site.cluster.call("scancel", "--batch", "--signal=USR2", job)
        site.until_logged("bounded", f"summary: status 85, {start}")
    assert site.wait(job, "bounded") == ("FAILED", 85)
    assert "not requeued again after 1 times" in site.log("bounded")
    assert list((site.shared / "bounded" / "checkpoints").glob("step-*"))


def test_the_next_link_of_a_chain_goes_on(site, uninterrupted):
    """A link is not requeued: the next one, which is in the queue, does the rest, and the last is
    cancelled.
    """
    words = ["pretrain_single", "--data", site.study, "--chain", "3", "--submit", "--"]
    words += [*INPUTS, *LONG, "--output-dir", "chain"]
    first, second, third = site.login("python3", ROOT / "slurm" / "generate", *words).stdout.split()
    assert site.facts(third)["Dependency"].startswith(f"afternotok:{second}")
    site.until_logged("chain", "start 1 of at most 1", f"epoch 1/{EPOCHS}")
    site.cluster.call("scancel", "--batch", "--signal=USR2", first)
    assert site.wait(first, "chain") == ("FAILED", 85)
    site.finish(second, "chain")
    assert "continues after step" in site.log("chain")
    assert site.weights("chain") == uninterrupted
    assert site.wait(third, "chain")[0] == "CANCELLED"
    site.assert_clean("chain")


def test_a_failing_stage_in(site):
    table = site.folder / "table.biom"
    shutil.copy(site.study / "table.biom", table)
    words = ["--table", table, *SMALL, "--output-dir", "unstaged"]
    job = site.submit("pretrain_single", *words, before=("--time", "1:00:00"))
    table.unlink()
    assert site.wait(job, "unstaged") == ("FAILED", 1)
    assert f"stage-in: {table} is missing" in site.log("unstaged")
    assert "nothing was computed" in site.log("unstaged")
    assert not (site.shared / "unstaged" / "run.json").exists()


def test_two_jobs_do_not_write_one_run_and_a_cancelled_one_keeps_what_it_saved(site):
    job = start_long(site, "twice", resume=False)
    other = site.submit("pretrain_single", *INPUTS, *LONG, "--output-dir", "twice")
    assert site.wait(other, "twice") == ("FAILED", 2)
    assert f"job {job} writes" in site.log("twice")
    for process in tasks_of(job):
        os.kill(process, signal.SIGCONT)
    site.cluster.call("scancel", job)
    assert site.wait(job, "twice")[0] == "CANCELLED"
    assert steps(site.shared / "twice")
    assert site.facts(job)["Restarts"] == "0"


def test_hostile_names(site):
    names = ["a b", "quo'te", 'dou"ble', "new\nline", "$(touch x)", "`y`;*"]
    folder = site.folder / "hostile"
    folder.mkdir()
    table = folder / ("".join(names) + ".biom")
    shutil.copy(site.study / "table.biom", table)
    variables = {"OUT": "a b", "TABLE": str(table), "ARGS": " ".join([*SMALL, "--epochs 1"])}
    done = site.login("make", "pretrain-single", **variables)
    job = done.stdout.split()[-1]
    site.finish(job, "a b")
    assert list(ROOT.glob("x")) == []
    record = json.loads((site.shared / "a b" / "run.json").read_text())
    assert record["inputs"]["table"]["path"].endswith(".biom")


def kill_one_of_four(site: Site, job: str, out: str) -> None:
    """Kill one of the four tasks of a job; started again, the job must end."""
    site.until(lambda: len(tasks_of(job)) == 4, 240, lambda: site.log(out))
    os.kill(tasks_of(job)[0], signal.SIGKILL)
    assert site.wait(job, out, 400) == ("COMPLETED", 0), site.log(out)
    assert "summary: status 137, start 1" in site.log(out)
    assert "summary: status 0, start 2" in site.log(out)


def test_four_tasks_of_a_node_share_five_folds_and_one_is_killed(site):
    """The job, which waits for the pretraining of its encoder, goes on without the task; requeued,
    it runs only the folds that have no result. What it writes is what aam writes without SLURM.
    """
    data = ["--table", "table.biom", "--metadata", "metadata.tsv", "--group-column", "subject"]
    data += ["--threads", "1", "--rarefy-depth", "300", "--device", "cpu", "--cv", "fold"]
    pretrain = [*SMALL[2:8], "--epochs", "2"]
    train = ["--metadata-column", "ph", "--members", "deep", "--epochs", "2", "--patience", "0"]
    train += ["--pretrained-encoder", site.shared / "pre"]
    words = [*data, "--tree", "tree.nwk", *pretrain, "--output-dir", "pre"]
    first = site.submit("pretrain_node", *words)
    words = [*data, *train, "--output-dir", "cv"]
    second = site.submit("train", *words, before=("--after", first))
    assert site.facts(second)["Dependency"].startswith(f"afterok:{first}")
    assert site.wait(first, "pre", 400) == ("COMPLETED", 0), site.log("pre")
    kill_one_of_four(site, second, "cv")
    plain = [site.study / word if word[-5:] in (".biom", "a.tsv") else word for word in data]
    words = [*plain, "--tree", site.study / "tree.nwk", *pretrain]
    ranks(site, ["pretrain", *words], "four", 4)
    assert site.weights("pre") == site.weights("four")
    aam("train", *plain, *train, "--output-dir", site.shared / "alone", cwd=site.folder)
    assert len({name for name in site.weights("cv") if name.startswith("fold-")}) >= 5
    assert site.weights("cv") == site.weights("alone")
    predictions = [site.shared / out / "predictions.tsv" for out in ("cv", "alone")]
    assert predictions[0].read_bytes() == predictions[1].read_bytes()


def test_a_failed_parent_cancels_its_children(site):
    parent = site.submit("pretrain_single", *INPUTS, "--max-bp", "5", "--output-dir", "broken")
    words = ["--table", "table.biom", "--model", "broken/model", "--output", "child/out.tsv"]
    child = site.submit("predict", *words, before=("--after", parent))
    assert site.wait(parent, "broken") == ("FAILED", 2)
    assert site.wait(child, "broken")[0] == "CANCELLED"


def test_staging_to_shared_storage(site):
    words = ("stage", "--table", "table.biom", "--tree", "tree.nwk", "--output-dir", "staged")
    site.finish(site.submit(*words), "staged")
    for name in ("table.biom", "tree.nwk"):
        assert (site.shared / "staged" / name).read_bytes() == (site.study / name).read_bytes()
    site.finish(site.submit(*words), "staged")
    assert "exists already" in site.log("staged")


def ranks(site: Site, words: list[object], out: str, count: int) -> None:
    """Run `count` processes of aam as torchrun would, without SLURM."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rendezvous = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rendezvous["PYTHONPATH"] = str(ROOT)
    out_words = ["--distributed", "--output-dir", str(site.shared / out)]
    command = [sys.executable, "-m", "aam", *map(str, words), *out_words]
    environments = (
        environment(RANK=str(rank), LOCAL_RANK=str(rank), **rendezvous) for rank in range(count)
    )
    running = [subprocess.Popen(command, cwd=site.folder, env=env) for env in environments]
    assert [process.wait(timeout=300) for process in running] == [0] * count


def test_two_nodes_are_warned_and_lose_a_rank(site, of_two):
    words = [*INPUTS, *LONG]
    job = site.submit("pretrain_multi", *words, "--output-dir", "pair", before=("--devices", "1"))
    site.until_logged("pair", "epoch 3/")
    site.cluster.call("scancel", "--batch", "--signal=USR2", job)
    site.until_logged("pair", "continues after step")
    old = {path.name for path in steps(site.shared / "pair")}
    disk = f"local/*/*/job_{job}/aam/run"
    new = lambda: {path.name for run in site.cluster.folder.glob(disk) for path in steps(run)}  # noqa: E731
    site.until(lambda: len(tasks_of(job)) == 2 and new() - old)
    os.kill(tasks_of(job)[-1], signal.SIGKILL)
    site.finish(job, "pair")
    for start, status in enumerate((85, 137, 0), start=1):
        assert f"summary: status {status}, start {start}," in site.log("pair")
    assert site.weights("pair") == of_two


def test_two_nodes_measure_what_joins_them(site):
    words = ["--device", "cpu", "--threads", "1", "--output", "check"]
    job = site.submit("doctor", *words, before=("--devices", "1"))
    site.finish(job, "check")
    report = json.loads((site.shared / "check" / "ranks.json").read_text())
    assert (report["ranks"], report["nodes"], report["transport"]) == (2, 2, "TCP")
    assert report["all_reduce"] > 1e6


def test_two_nodes_in_an_image_are_warned(site, image, of_two):
    """The same job through Apptainer and a SIF gives the same bits."""
    inside = {"AAM_SITE_ENGINE": "apptainer", "AAM_SITE_IMAGE": str(image)}
    words = [*INPUTS, *LONG, "--output-dir", "sif"]
    job = site.submit("pretrain_multi", *words, before=("--devices", "1"), **inside)
    site.until_logged("sif", "epoch 3/")
    site.cluster.call("scancel", "--batch", "--signal=USR2", job)
    site.finish(job, "sif")
    assert "summary: status 85, start 1" in site.log("sif")
    assert site.weights("sif") == of_two
    sidecar = json.loads(image.with_name(image.name + ".json").read_text())
    record = json.loads((site.shared / "sif" / "run.json").read_text())
    assert record["image"] == f"sha256:{sidecar['image']['sha256']}"


def test_a_command_reaches_a_node(site):
    """As `nox -s test_rocm` does on a login node: words stay as they are, the exit status is that
    of the command.
    """
    source = "import os, sys; print(os.environ['SLURMD_NODENAME'], sys.argv[1:]); sys.exit(3)"
    words = [sys.executable, "-c", source]
    path = f"{site.variables['PATH']}:{os.environ['PATH']}"
    done = site.login(
        *(ROOT / "slurm" / "generate", "reach", "--"), *words, "a b", "$(x)", status=3, PATH=path
    )
    assert re.fullmatch(r"node[12] \['a b', '\$\(x\)'\]\n", done.stdout), done.stdout + done.stderr


# --- slow: run by nox -s slurm, not at every change --------------------------------------------


def test_slow_profiles_of_a_node(site):
    """Results of doctor and profiles are kept; a message says that there are no kernels to trace
    here.
    """
    job = site.submit("profile_rocm", "--output-dir", "profile")
    assert site.wait(job, "profile", 900) == ("COMPLETED", 0), site.log("profile")
    results = site.shared / "profile"
    assert json.loads((results / "doctor.json").read_text())["platform"]["vendor"] == "CPU"
    step = json.loads((results / "step" / "profile.json").read_text())
    assert step["accounted"] > 0.5
    assert step["samples_per_s"] > 0
    assert "backward" in json.loads((results / "memory" / "memory.json").read_text())["stages"]
    assert "rocprofv3 is neither in the image nor on this node" in site.log("profile")


def test_slow_the_nightly_job(site, image):
    """Its tests fail without a GPU; everything else runs in the image, and the results are kept."""
    inside = {"AAM_SITE_ENGINE": "apptainer", "AAM_SITE_IMAGE": str(image)}
    job = site.submit("ci_rocm", "--output-dir", "nightly", **inside)
    assert site.wait(job, "nightly", 1200) == ("FAILED", 1), site.log("nightly")
    assert site.log("nightly").rstrip().endswith("failed: tests"), site.log("nightly")
    results = site.shared / "nightly"
    assert "its self-test failed" in (results / "tests.log").read_text()
    assert json.loads((results / "doctor.json").read_text())["container"]
    assert json.loads((results / "profile" / "profile.json").read_text())["accounted"] > 0.5
    assert len((results / "metrics.jsonl").read_text().splitlines()) > 3
