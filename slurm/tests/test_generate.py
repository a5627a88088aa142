"""slurm/generate as on a login node: what it writes, what it refuses, and how it quotes names."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from aam.device.probe import PROBE_SECONDS
from containers.lib.errors import InputError
from containers.tests.conftest import record
from slurm.jobs import options, site
from slurm.jobs.request import KINDS
from tests.programs import absent, run_program, write_program

ROOT = Path(__file__).parents[2]
GENERIC = {"PARTITION": "batch", "SHARED": "/shared/{user}", "LOCAL": "/local/{user}/{job}"}
GENERIC |= {"MAX_HOURS": "48", "MAX_NODES": "8", "ACCOUNT": "none", "GRES": "none"}
GENERIC_SITE = {f"AAM_SITE_{key}": value for key, value in GENERIC.items()}
HOSTILE = "a b'c\"d\n$(touch x)`y`;*\\é"
# What a SIF begins with.
SIF = b"#!/usr/bin/env run-singularity".ljust(32, b"\0") + b"SIF_MAGIC"

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The shared storage of the site."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def generate() -> Callable[[], int]:
    """The function `main` of slurm/generate, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", ["", *sys.path])
        return runpy.run_path(str(ROOT / "slurm" / "generate"))["main"]


@pytest.fixture
def login(tmp_path: Path, shared: Path, generate) -> Callable[..., Done]:
    """Runs slurm/generate where PATH holds make, python3, singularity and sbatch and nothing else.

    It runs in this process, or as a process of its own: `python3 slurm/generate`, or through make.
    """
    path = tmp_path / "login"
    path.mkdir()
    (path / "python3").symlink_to(os.path.realpath(sys.executable))
    (path / "make").symlink_to(shutil.which("make") or "make")
    for name in ("sbatch", "singularity"):
        write_program(path / name, f'echo "$@" >>{tmp_path}/calls\necho 4711')
    for name in ("table.biom", "tree.nwk"):
        (tmp_path / name).write_text("(x" * 1000)
    (tmp_path / "image.sif").write_bytes(SIF)
    variables = {"PATH": str(path), "HOME": str(tmp_path / "home"), "LANG": "C.UTF-8"}
    variables |= {"AAM_SITE_SHARED": str(shared), "AAM_SITE_IMAGE": str(tmp_path / "image.sif")}

    def run(*words: object, status: int = 0, program: str = "", **more: str) -> Done:
        environment, out, err = {**variables, **more}, io.StringIO(), io.StringIO()
        words = tuple(map(str, words))
        if program:
            command = [path / program, *["slurm/generate"] * (program == "python3"), *words]
            return run_program(*command, cwd=ROOT, env=environment, status=status)
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.object(sys, "argv", ["slurm/generate", *words]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            done = Done(words, generate(), out.getvalue(), err.getvalue())
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def of_table(login: Callable[..., Done], tmp_path: Path) -> Callable[..., Done]:
    """Runs slurm/generate for a job that reads table.biom; `more` is for aam."""

    def run(job: str, *words: object, more: tuple[object, ...] = (), **options) -> Done:
        given = ("--table", "table.biom", *more)
        return login(job, "--data", tmp_path, *words, "--", *given, **options)

    return run


@pytest.fixture
def pretrain(of_table: Callable[..., Done]) -> Callable[..., str]:
    """The script of a pretraining job."""

    def write(*words: object, more: tuple[object, ...] = (), **variables: str) -> str:
        more = ("--tree", "tree.nwk", *more)
        return of_table("pretrain_node", *words, more=more, **variables).stdout

    return write


@pytest.fixture
def make(login, tmp_path: Path) -> Callable[..., Done]:
    """Runs make TARGET; TABLE, TREE and METADATA are files of the test if they are `True`."""
    names = {"TABLE": "table.biom", "TREE": "tree.nwk", "METADATA": "metadata.tsv"}

    def run(target: str, status: int = 0, **variables: object) -> Done:
        files = {name: tmp_path / names[name] for name, v in variables.items() if v is True}
        texts = {name: str(value) for name, value in (variables | files).items()}
        return login(target, program="make", status=status, **texts)

    return run


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    """The file of the site that a user has at home."""
    path = tmp_path / "home" / ".config" / "aam" / "site.toml"
    path.parent.mkdir(parents=True)
    return path


def write_model(folder: Path) -> None:
    folder.mkdir()
    (folder / "model.json").write_text("{}")


# --- scripts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cosmos", "generic"])
def test_committed_scripts_are_the_generators_output(name, tmp_path):
    environment = {"PATH": os.environ["PATH"], **(GENERIC_SITE if name == "generic" else {})}
    words = ("examples", "--site", name, "--output", tmp_path)
    run_program(sys.executable, ROOT / "slurm" / "generate", *words, env=environment)
    golden = ROOT / ("slurm" if name == "cosmos" else "slurm/tests/golden")
    paths = [path for path in golden.glob("*.sh") if path.name != "lib.sh"]
    committed = {path.name: path.read_text() for path in paths}
    assert len(committed) == (8 if name == "cosmos" else 1)
    written = {path: (tmp_path / path).read_text() for path in committed}
    assert written == committed, "see tests/golden/README.md"
    for path in tmp_path.glob("*.sh"):
        run_program("bash", "-n", path)
        assert len(path.read_text().splitlines()) <= 110


def test_the_options_of_jobs_are_those_of_aam():
    module = runpy.run_path(str(ROOT / "slurm" / "write_options.py"))
    text = module["as_text"]()
    assert options.OPTIONS_FILE.read_text() == text, "python slurm/write_options.py writes them"
    assert {kind.command for kind in KINDS.values()} - {""} == set(json.loads(text))
    # Every file that a command reads is staged.
    known = {*options.INPUTS, *options.OUTPUTS, *options.RESERVED}
    for command in module["COMMANDS"]:
        assert set(module["paths_of"](command)) <= known


def test_a_bare_python_is_enough():
    words = ("-I", "-S", "slurm/generate", "pretrain_node")
    done = run_program(sys.executable, *words, cwd=ROOT)
    assert done.stdout.startswith("#!/bin/bash -l\n# aam pretrain_node")


def test_a_login_node_is_enough(pretrain, tmp_path, shared):
    text = pretrain(program="python3")
    assert not (tmp_path / "calls").exists(), "nothing is submitted without --submit"
    assert list(shared.iterdir()) == []
    reads = f"reads       {tmp_path}/table.biom (2.0 kB)"
    first = f"# first       mkdir -p {shared}/aam/pretrain_node-table/slurm"
    device = ("    --device hip", "    --num-workers 4", "DEVICE=hip\n", "PYTHON=python3\n")
    loaded = ("module load cray-python/3.11.7", "    --mem-bind=local ")
    assert absent(text, reads, first, *device, *loaded) == []
    text = pretrain("--allow-cpu")
    assert "DEVICE=cpu\n" in text
    assert "--device" not in text


def test_names_that_are_no_files_are_not_staged(of_table, tmp_path):
    (tmp_path / "other.biom").write_text("x")
    words = shlex.split("--metadata metadata.tsv --metadata-column age --pretrained-encoder 16s-v4")
    text = of_table("train", more=words).stdout
    assert "--pretrained-encoder 16s-v4\n" in text
    assert "in/pretrained-encoder" not in text
    text = of_table("pretrain_single", more=("other.biom", "--tree", "tree.nwk", "none")).stdout
    assert "--tree in/tree/0/tree.nwk none\n" in text


def test_a_line_appears_only_when_set(pretrain):
    for name in ("account", "qos", "gres"):
        assert f"--{name}" not in pretrain()
        assert f"#SBATCH --{name}=abc" in pretrain(f"--{name}", "abc")


def test_hostile_names_are_quoted(login, tmp_path):
    table = tmp_path / HOSTILE
    table.write_text("x")
    words = (f"--table={table}", "--group-column", HOSTILE, "--output-dir", "pre")
    path = f"{tmp_path}/login:{os.environ['PATH']}"
    text = login("pretrain_node", "--data", HOSTILE, "--", *words, PATH=path).stdout
    head, _, rest = text.partition("set -uo pipefail")
    # The header stays a comment.
    assert all(line.startswith("#") for line in head.strip().splitlines())
    facts = rest.partition("LIB_SHA256=")[0]
    show = 'printf "%s\\0" "${SOURCES[@]}" "${TARGETS[@]}" "${COMMAND[@]}"'
    done = run_program("bash", "-uc", facts + show, cwd=tmp_path, env={"SLURM_JOB_ID": "7"})
    words = done.stdout.split("\0")
    assert words[:2] == [str(table), f"table/{HOSTILE}"]
    assert words[words.index("--table") + 1] == f"in/table/{HOSTILE}"
    assert words[words.index("--group-column") + 1] == HOSTILE
    assert not (tmp_path / "x").exists()


def test_an_image_at_home_is_copied_to_each_node(pretrain, tmp_path):
    image = tmp_path / "image.sif"
    assert f"IMAGE={image}" in pretrain()
    (tmp_path / "image.sif.json").write_text("{}")
    text = pretrain(AAM_SITE_HOME=str(tmp_path))
    assert absent(text, "IMAGE=$AAM_LOCAL/aam/in/image.sif", f"    {image}.json\n") == []


def test_the_warning_leaves_time_for_a_checkpoint(pretrain, shared):
    def seconds(text: str) -> int:
        return int(re.search(r"USR2@(\d+)", text)[1])

    assert seconds(pretrain()) == 420
    # A trial of the device does not outlast the warning.
    assert PROBE_SECONDS < 420 - 60
    compiled = seconds(pretrain(more=("--compile-model", "--output-dir", "compiled")))
    assert compiled - 60 > 2 * PROBE_SECONDS
    assert seconds(pretrain("--time", "5:00")) == 150
    state = shared / "big" / "checkpoints" / "step-9"
    state.mkdir(parents=True)
    (shared / "big" / "run.json").write_text("{}")
    with (state / "tensors").open("wb") as file:
        file.truncate(2_000_000_000)
    slow = {"AAM_SITE_SHARED_MB_PER_SECOND": "20"}
    assert seconds(pretrain(more=("--output-dir", "big"), **slow)) == 660


def test_times():
    times = {"90": 5400, "2:30": 150, "1:00:00": 3600, "1-0": 86400, "1-2:30": 95400}
    times["0-0:0:121"] = 121
    assert {time: options.parse_time(time) for time in times} == times


def test_the_doctor_of_two_nodes(make, shared):
    text = make("doctor", SUBMIT="0", NODES="2", OUT="check").stdout
    words = ("aam doctor", "--threads 24", "--device hip", "--ranks", "--output run/ranks.json")
    command = "COMMAND=(\n" + "".join(f"    {word}\n" for word in words) + ")"
    tasks = "srun --nodes=2 --ntasks=8 --ntasks-per-node=4"
    assert absent(text, command, tasks, f"# writes      {shared}/check/ranks.json\n") == []


def test_a_job_without_a_network_uses_no_gpu_and_says_so(of_table, tmp_path):
    (tmp_path / "metadata.tsv").write_text("sample-id\tage\ns1\t7\n")
    words = ("--metadata", "metadata.tsv", "--metadata-column", "age")
    done = of_table("train", more=words)
    assert "train fits a linear model and trees and uses no GPU: it runs as one task" in done.stderr
    lines = ("DEVICE=cpu\n", "    --threads 96\n", "#SBATCH --cpus-per-task=192\n")
    assert absent(done.stdout, *lines) == []
    done = of_table("train", more=words, AAM_SITE_CPU_PARTITION="shared", AAM_SITE_GRES="gpu:4")
    assert "it runs in the partition shared" in done.stderr
    assert "#SBATCH --partition=shared\n" in done.stdout
    assert "--gres" not in done.stdout
    network = (*words, "--pretrained-encoder", "16s-v4")
    done = of_table("train", more=network)
    assert "uses no GPU" not in done.stderr
    assert "# devices     train uses one device of the 4 of a whole node; the folds" in done.stderr
    assert "DEVICE=hip\n" in done.stdout
    done = of_table("train", more=(*network, "--cv", "age"))
    assert "devices     " not in done.stderr
    lines = ("EACH=cv\n", "#SBATCH --ntasks-per-node=4\n", "VALUES=()\n")
    assert absent(done.stdout, *lines) == []
    assert "--distributed" not in done.stdout


def test_the_library_is_copied_to_the_log_and_can_be_part_of_the_script(
    make, pretrain, predict, shared
):
    predict()
    library = (ROOT / "slurm" / "lib.sh").read_bytes()
    digest = hashlib.sha256(library).hexdigest()
    copy = shared / "aam" / "predict-table" / "slurm" / f"lib-{digest[:12]}.sh"
    assert copy.read_bytes() == library
    text = pretrain()
    assert f"# lib.sh      sha256 {digest}\n" in text
    assert "stage_in() {" not in text
    inline = make("pretrain-node", SUBMIT="0", ARGS="--inline --epochs 3").stdout
    assert absent(inline, "stage_in() {", "    --epochs 3\n") == []
    assert "LIB=" not in inline
    for script, words, said in (
        (inline, ["-n"], ""),
        (text.replace("LIB_SHA256=", "LIB_SHA256=0"), [], "slurm/lib.sh has changed: write this "),
    ):
        environment = {"SLURM_JOB_ID": "7", "PATH": os.environ["PATH"]}
        options = {"input": script, "env": environment, "status": 1 if said else 0}
        done = run_program("bash", *words, **options)
        assert done.stderr.startswith(said)
        assert bool(done.stderr) == bool(said)


# --- make --------------------------------------------------------------------------------------


def test_make_shows_what_it_submits(make, tmp_path, shared):
    files = {"TABLE": True, "TREE": True, "OUT": "pre"}
    done = make("pretrain-node", **files)
    assert "#SBATCH --nodes=1" in done.stderr
    assert done.stdout.strip() == "4711"
    script_path = shared / "pre" / "slurm" / "pretrain_node.sh"
    assert (tmp_path / "calls").read_text().split()[-1] == str(script_path)
    done = make("pretrain-multi", **files, NODES=3, TIME="4:00:00", SUBMIT="0")
    assert absent(done.stdout, "#SBATCH --nodes=3", "#SBATCH --time=04:00:00") == []
    assert len((tmp_path / "calls").read_text().splitlines()) == 1
    example = "make pretrain-node TABLE=table.biom TREE=tree.nwk"
    assert f"--table: is missing; for example: {example}" in make("pretrain-node", 2).stderr


def test_a_dry_run_shows_a_script_anywhere_and_a_submission_is_refused(make, tmp_path):
    missing = {"TABLE": tmp_path / "no.biom", "AAM_SITE_IMAGE": tmp_path / "no.sif"}
    missing["AAM_SITE_SHARED"] = tmp_path / "nowhere"
    shown = make("pretrain-node", SUBMIT="0", **missing)
    assert shown.stdout.count("#!/bin/bash") == 1
    assert str(tmp_path / "no.biom") in shown.stdout
    refused = make("pretrain-node", 2, **missing)
    assert not refused.stdout
    absences = ("no.biom is missing", "no.sif is missing", "nowhere is not a folder here")
    assert absent(shown.stderr, *absences) == absent(refused.stderr, *absences) == []
    assert absent(shown.stdout, *absences) == list(absences)
    assert not (tmp_path / "calls").exists()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("pretrain-node", "--table TABLE"),
        ("train", "--table TABLE --metadata METADATA --metadata-column COLUMN"),
        ("predict", "--table TABLE --model MODEL"),
        ("stage", ""),
    ],
)
def test_a_dry_run_with_nothing_else_shows_the_job_with_placeholders(make, target, names):
    shown = make(target, SUBMIT="0")
    assert shown.stdout.startswith("#!/bin/bash")
    options, placeholders = names.split()[::2], names.split()[1::2]
    assert absent(shown.stdout, "/TABLE", *placeholders) == []
    pairs = zip(options, placeholders, strict=True)
    said = [f"{option}: is missing, {name} stands in its place" for option, name in pairs]
    assert absent(shown.stderr, *said) == []
    assert shown.stderr.count("TABLE") == 1, "each absence is named once"


def test_wrong_variables_of_make(make, tmp_path):
    more = {"COLUMN": "age", "NODES": "²", "SUBMIT": "no", "ARGS": "'", "ALLOW_CPU": "yes"}
    message = make("train", 2, TABLE=True, CHAIN="x", **more).stderr
    parts = ["ARGS=': a quote or backslash is not closed"]
    parts += ["NODES=²: expected a number", "CHAIN=x: expected a number"]
    parts += ["SUBMIT=no: expected 0", "ALLOW_CPU=yes: expected 0"]
    assert absent(message, *parts) == []
    assert "Traceback" not in message
    column = 'it\'s "my" Age (days)'
    (tmp_path / "metadata.tsv").write_text(f"sample-id\t{column}\tsex\ns1\t7\tf\n")
    more = {"COLUMN": column, "METADATA": True, "TABLE": True}
    assert "Traceback" not in make("train", **more).stderr
    assert (tmp_path / "calls").exists(), "an empty SUBMIT submits"
    text = make("train", **more, SUBMIT="0").stdout
    assert shlex.join(["--metadata-column", column]) + "\n" in text, "a column is one column"
    more |= {"COLUMN": "", "ARGS": "--metadata-column sex " + shlex.quote(column)}
    text = make("train", **more, SUBMIT="0").stdout
    assert shlex.join(["--metadata-column", "sex", column]) + "\n" in text
    shown = make("pretrain-node", SUBMIT="0", ALLOW_CPU="1").stdout
    assert "DEVICE=cpu\n" in shown


# --- sites -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "words", "gres", "devices"),
    [
        ("pretrain_single", "--tree tree.nwk", "gpu:a100:1", 1),
        ("pretrain_node", "--tree tree.nwk", "gpu:a100:4", 4),
        ("train", "--metadata metadata.tsv --metadata-column age --members deep", "gpu:a100:1", 1),
        ("train", "--metadata metadata.tsv --metadata-column age", "", 1),
        ("predict", "--model model", "gpu:a100:1", 1),
    ],
)
def test_where_a_node_is_shared_a_job_asks_for_what_it_uses(
    of_table, tmp_path, job, words, gres, devices
):
    (tmp_path / "metadata.tsv").write_text("sample-id\tage\ns1\t7\n")
    write_model(tmp_path / "model")
    site = GENERIC_SITE | {"AAM_SITE_GRES": "gpu:a100:4", "AAM_SITE_EXCLUSIVE": "false"}
    del site["AAM_SITE_SHARED"]
    text = of_table(job, "--site", "generic", more=words.split(), **site).stdout
    assert re.findall(r"--gres=(\S+)", text) == [gres] * bool(gres)
    assert f"\nDEVICES={devices} " in text
    assert "--exclusive" not in text
    by_number = {"AAM_SITE_GRES": "none", "AAM_SITE_GPUS_PER_NODE": "4"}
    text = of_table(job, "--site", "generic", more=words.split(), **site | by_number).stdout
    assert re.findall(r"--gpus-per-node=(\d+)", text) == [str(devices)] * bool(gres)


def test_none_is_an_answer(pretrain):
    """A site without accounts or GPU requests says so; nobody forgets them."""
    variables = {name: value for name, value in GENERIC_SITE.items() if "SHARED" not in name}
    text = pretrain("--site", "generic", **variables)
    assert "--account" not in text.partition("set -uo")[0]
    assert "--gres" not in text
    variables |= {"AAM_SITE_ACCOUNT": "lab", "AAM_SITE_GRES": "gpu:4"}
    text = pretrain("--site", "generic", **variables)
    assert absent(text, "#SBATCH --account=lab\n", "#SBATCH --gres=gpu:4\n") == []


@pytest.mark.parametrize("device", ["cuda", "hip"])
def test_the_image_follows_the_device_of_a_site(device):
    values = {"device": device, **{key.lower(): value for key, value in GENERIC.items()}}
    found = site.load_site("generic", values, {})
    flavour, enter = {"cuda": ("cuda", ("--nv",)), "hip": ("rocm", ())}[device]
    assert (found.image, found.enter) == (f"containers/aam-{flavour}.sif", enter)


# What the public pages of each site show in their own scripts.
PUBLIC_SITES = {
    "lumi-g": "partition=standard-g account=project_1 gpus-per-node=8 ntasks-per-node=8",
    "perlmutter": "qos=regular constraint=gpu gpus-per-node=4 cpus-per-task=32",
    "frontier": "partition=batch constraint=nvme account=project_1 gpus-per-node=8 time=02:00:00",
    "delta": "partition=gpuA100x4 account=project_1 gpus-per-node=4 cpus-per-task=16",
    "cosmos-tpx": "reservation=tpx ntasks-per-node=12 cpus-per-task=16",
}
CORES_OF_LUMI = "0x7e000000000000,0x7e00000000000000,0x7e0000,0x7e000000,0x7e,0x7e00,0x7e00000000,"
CORES_OF_LUMI += "0x7e0000000000"


@pytest.mark.parametrize("name", PUBLIC_SITES)
def test_scripts_for_other_sites(pretrain, login, name, tmp_path):
    words = ("--site", name)
    text = pretrain(*words, AAM_SITE_ACCOUNT="project_1")
    assert absent(text, *(f"#SBATCH --{part}\n" for part in PUBLIC_SITES[name].split())) == []
    assert (f"MASKS={CORES_OF_LUMI} " in text) == (name == "lumi-g")
    assert (".venv/bin/python -m aam pretrain" in text) == (name == "perlmutter")
    run_program("bash", "-n", input=text)
    text = pretrain(*words, "--gres", "gpu:2", AAM_SITE_ACCOUNT="project_1")
    assert "#SBATCH --gres=gpu:2" in text
    assert "--gpus-per-node" not in text, "one request for GPUs, not two"
    if name != "cosmos-tpx":
        table = ("--table", tmp_path / "table.biom")
        words = (*words, "--submit", "--")
        done = login("pretrain_node", *words, *table, status=2, AAM_SITE_SHARED="")
        assert absent(done.stderr, "account: is not set", "shared: is") == []


def test_further_options_variables_and_limits_of_a_site(pretrain):
    more = {"AAM_SITE_SBATCH": "--mail-type=END;--reservation=x", "AAM_SITE_ENV": "A=it's;B="}
    text = pretrain(**more, AAM_SITE_SEEN="2026-11-27, c0ffee")
    assert "\n#SBATCH --mail-type=END\n#SBATCH --reservation=x\n" in text
    assert "--env 'A=it'\"'\"'s' --env B=)" in text
    assert "# site        2026-11-27, c0ffee\n" in text
    assert "# site        aam has not run there yet\n" in pretrain()
    limits = {"AAM_SITE_LIMITS": "1:2;3:6"}
    assert "#SBATCH --time=02:00:00\n" in pretrain(**limits)
    assert "#SBATCH --time=08:00:00\n" in pretrain("--nodes=4", "--time=8:00:00", **limits)


@pytest.mark.parametrize("parts", [1, 3, 6], ids=["SPX", "TPX", "CPX"])
def test_each_part_of_a_divided_apu_gets_a_rank_and_cores_of_its_own(pretrain, parts):
    """A node of Cosmos in each mode of its four APUs; rank N of a node takes its device N."""
    cores = 24 // parts
    sets = [f"{n}-{n + cores - 1},{n + 96}-{n + 95 + cores}" for n in range(0, 96, cores)]
    variables = {"DEVICES_PER_NODE": 4 * parts, "CPUS_PER_DEVICE": 2 * cores, "THREADS": cores}
    variables["CPU_SETS"] = ";".join(sets)
    text = pretrain(**{f"AAM_SITE_{key}": str(value) for key, value in variables.items()})
    tasks = (f"#SBATCH --ntasks-per-node={4 * parts}\n", f"#SBATCH --cpus-per-task={2 * cores}\n")
    assert absent(text, *tasks, f"--threads {cores}") == []
    (masks,) = re.findall(r"\nMASKS=([0-9a-fx,]+) ", text)
    numbers = [int(mask, 16) for mask in masks.split(",")]
    assert len(numbers) == 4 * parts
    assert sum(numbers) == 2**192 - 1, "each core belongs to one rank"
    assert all(mask.bit_count() == 2 * cores for mask in numbers)
    if parts == 3:
        assert f"MASKS={masks} " in pretrain("--site", "cosmos-tpx"), "the profile says the same"
    assert "VISIBLE_DEVICES=" not in text, "SLURM's own list holds for all ranks of a node"


def test_later_layers_of_a_site_win(pretrain, user_file):
    user_file.write_text('account = "file"\nqos = "file"\npartition = "file"\n')
    text = pretrain("--partition", "option", AAM_SITE_QOS="variable", AAM_SITE_PARTITION="variable")
    lines = ("--account=file", "--qos=variable", "--partition=option")
    assert absent(text, *(f"#SBATCH {line}\n" for line in lines)) == []


def test_missing_values_of_a_site_are_named(login, user_file, tmp_path):
    words = ("--site", "generic", "--", "--table", tmp_path / "table.biom")
    message = login("pretrain_node", "--submit", *words, status=2).stderr
    # A script that is only shown names what is missing in its place.
    shown = login("pretrain_node", *words)
    marked = ["--partition=PARTITION", "--account=ACCOUNT", "--gres=GRES", "AAM_LOCAL=/LOCAL"]
    assert absent(shown.stdout, *marked) == []
    assert "a submission from here would fail" in shown.stderr
    assert all(line.strip() in shown.stderr for line in message.splitlines()[1:])
    for name in ("partition", "account", "gres", "local", "max_hours", "max_nodes"):
        said = (f"{name}: is not set, and generic needs it", f"AAM_SITE_{name.upper()}=")
        assert absent(message, *said) == []
    assert "AAM_SITE_GRES=...; none where the site has none" in message
    assert "\n  shared: is not set" not in message
    user_file.write_bytes(b'qos = "\xff"\n')
    (tmp_path / "other.toml").write_text("[[")
    message = login("stage", "--site", tmp_path / "other.toml", "--", status=2).stderr
    assert absent(message, f"{user_file}: is not UTF-8", f"{tmp_path}/other.toml: ") == []


# One wrong value a word, but for those with spaces.
WRONG_VALUES = {
    "parttition": ["'x'"],
    "hours": ["nan", "inf", "true", "-1", "[1]", "1979-05-27"],
    "max_hours": ["nan", "1e300"],
    "max_nodes": ["'many'"],
    "devices_per_node": ["-2", "0", "1.5"],
    "cpus_per_device": ["-1"],
    "most_requeues": ["-1"],
    "shared_mb_per_second": ["0", "-1", "nan"],
    "copy_minutes": ["inf"],
    "exclusive": ["1", '"yes"'],
    "title": ["3", '"a\\nb"'],
    "setup": ["[1]", '[["a"]]', '["a\\nb"]', "3"],
    "enter": ["[{}]"],
    "needs": ["[1]", '["nosuch"]', "[{}]"],
    "cpu_sets": ['["x-y"]', "[5]", '["9-5"]', '["0-99999"]', '["4,1"]', '["²"]', '[""]'],
    "shared": ["3"],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values]
)
def test_wrong_values_in_a_file_of_a_site(tmp_path, key, value):
    user_file = tmp_path / "aam" / "site.toml"
    user_file.parent.mkdir()
    user_file.write_text(f"{key} = {value}\nqos = 5\nsite = 3\n", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        site.load_site("", {}, {"XDG_CONFIG_HOME": str(tmp_path)})
    first, second, third = refused.value.problems
    assert first.startswith(f"{user_file}: site is 3, expected ")
    assert second.startswith(f"{user_file}: {key} ")
    assert "expected " in second
    assert third.startswith(f"{user_file}: qos is 5, expected text")


# --- seeds, chains, costs ----------------------------------------------------------------------


def test_a_job_starts_after_the_one_that_writes_its_model(make, of_table, tmp_path):
    model = ("--model", "tune/model")
    refused = of_table("predict", "--submit", more=model, status=2).stderr
    assert f"--model tune/model: {tmp_path}/tune/model is missing" in refused
    done = of_table("predict", "--submit", "--after", "12", more=model)
    assert done.stdout == "4711\n"
    make("pretrain-node", TABLE=True, CHAIN="2", AFTER="34")
    calls = (tmp_path / "calls").read_text().splitlines()
    dependencies = [re.findall(r"--dependency=(\S+)", call) for call in calls]
    assert dependencies == [["afterok:12"], ["afterok:34"], ["afterok:34,afternotok:4711"]]
    assert all("--kill-on-invalid-dep=yes" in call for call in calls)


def test_the_tasks_of_a_node_share_seeds(of_table, make):
    seeds = ("--seeds", "3", "14")
    text = of_table("pretrain_single", *seeds, more=("--output-dir", "pre")).stdout
    lines = ("EACH=seed\n", "VALUES=(3 14)\n", "OPTION=(--seed)\n")
    assert absent(text, *lines, "#SBATCH --ntasks-per-node=2\n") == []
    assert "--output-dir" not in text, "each run has its own"
    tasks = "# tasks       take the next seed until none is left: 3, 14"
    cost = "cost        at most 1 x 12.0 h = 12.0 node-hours"
    assert absent(make("pretrain-node", TABLE=True, SEEDS="3 14").stderr, tasks, cost) == []


def test_a_chain_is_a_run_of_several_jobs(make, tmp_path, shared):
    done = make("pretrain-node", TABLE=True, CHAIN="3", OUT="long")
    assert done.stdout.split() == ["4711"] * 3
    dependency = "--dependency=afternotok:4711 --kill-on-invalid-dep=yes"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [dependency in line for line in calls] == [False, True, True]
    assert "MOST_REQUEUES=0\n" in (shared / "long" / "slurm" / "pretrain_node.sh").read_text()


def test_the_cost_is_said_before_a_job_is_submitted(login, tmp_path):
    words = ["--data", tmp_path, "--time", "1:00:00", "--", "--table", "table.biom"]
    cost = "# cost        at most 1 x 1.0 h = 1.0 node-hours for each start\n"
    assert cost in login("pretrain_single", *words).stderr


# --- images ------------------------------------------------------------------------------------


@pytest.fixture
def predict(login, tmp_path) -> Callable[..., Done]:
    """Submits a job that predicts by the folder model."""
    write_model(tmp_path / "model")
    words = ("predict", "--data", tmp_path, "--submit", "--", "--table", "table.biom")
    return lambda **options: login(*words, "--model", "model", **options)


def test_an_image_is_checked_before_a_job_is_queued(predict, tmp_path, shared):
    image = tmp_path / "image.sif"
    predict()
    script = (shared / "aam" / "predict-table" / "slurm" / "predict.sh").read_text()
    digest = hashlib.sha256(SIF).hexdigest()
    assert f"IMAGE_FILES=({image})\nIMAGE_SHA256=({digest})\n" in script
    record(image)
    predict()
    (tmp_path / "calls").unlink()
    image.write_bytes(SIF + b"damaged")
    assert "its sidecar has" in predict(status=2).stderr
    image.with_name("image.sif.json").write_text("{}")
    assert "is not a sidecar of this version" in predict(status=2).stderr
    for content in (b"", b"x" * 100):
        image.write_bytes(content)
        message = predict(status=2).stderr
        assert f"({len(content)} bytes) is not a SIF image; make container-rocm" in message
    assert not (tmp_path / "calls").exists(), "nothing was submitted"


# --- refusals ----------------------------------------------------------------------------------


PROFILES = ", ".join(sorted(path.stem for path in (ROOT / "slurm" / "sites").glob("*.toml")))
NO_WORD = "which is not a name for SLURM"
NO_NAME_OF_A_LOG = ("SLURM cannot write a log", "choose another by --output-dir (OUT of make)")
NO_OPTION = "aam pretrain has no such option"

# The words for slurm/generate, after variables of the environment; TABLE is `--data TMP -- --table
# table.biom`, and TMP the folder of the test. Then all that is said.
REFUSED = [
    (
        "pretrain_multi --nodes 5 --time 25:00:00 --devices 9 --image no.sif --data TMP -- "
        "--table no.biom --output-dir /elsewhere --overwrite",
        "at most 4",
        "25 h is more than the 24 h",
        "--devices 9",
        "no.sif is missing",
        "no.biom is missing",
        "/elsewhere is not below",
        "--overwrite: a job never writes over anything",
    ),
    (
        f"pretrain_node --nodes=0 --devices=-1 --time soon TABLE --embedding-dim {'9' * 400}",
        "--nodes 0: expected 1 or more",
        "--devices -1: expected 1 or more",
        "--time soon: expected HH:MM:SS",
    ),
    *[
        (f"pretrain_node --account {shlex.quote(word)} TABLE", NO_WORD)
        for word in ("a b", 'a" --uid=0', "a\nb", "$(x)")
    ],
    *[
        (f"pretrain_node TABLE --output-dir {shlex.quote(name)}", *NO_NAME_OF_A_LOG)
        for name in ("quo'te", "new\nline", "per%cent", "doll$ar")
    ],
    # Sites.
    (
        "AAM_SITE_DEVICES_PER_NODE=24 AAM_SITE_LOCAL=scratch/{user} pretrain_node TABLE",
        "cpu_sets: has 4 sets for devices_per_node = 24, expected one for each device, or []",
        "AAM_SITE_CPU_SETS=",
        "local: is 'scratch/{user}', expected an absolute path",
    ),
    (
        "AAM_SITE_LIMITS=1:2;3:6 pretrain_multi --time=7:00:00 TABLE",
        "7 h is more than the 6 h that SDSC Cosmos allows for 2 nodes",
    ),
    *[
        (f"AAM_SITE_SBATCH={value} pretrain_node TABLE", f"sbatch holds {value!r}, expected a list")
        for value in ("--nodes=9", "mail", "--no-requeue")
    ],
    *[
        (f"AAM_SITE_ENV={value} pretrain_node TABLE", f"env holds {value!r}, expected a list")
        for value in ("x", "1x=2")
    ],
    *[
        (f"AAM_SITE_LIMITS={value} pretrain_node TABLE", f"limits holds {value!r}, expected a list")
        for value in ("91", "0:2")
    ],
    (
        "AAM_SITE_LIMITS=9:2;3:6 pretrain_node TABLE",
        "limits: is ['9:2', '3:6'], expected ascending numbers of nodes",
    ),
    ("stage --site mars --", f"no such profile; expected one of {PROFILES}, or a .toml file"),
    # Seeds and chains.
    (
        "pretrain_single --seeds 3 3 x --chain 100000 TABLE --seed 1",
        "--seeds 3 3 x: expected different",
        "--chain 100000: expected 1 to 1,000",
        "--seed: each run of --seeds",
    ),
    ("stage --seeds 3 14 TABLE", "--seeds, --chain: stage has one job"),
    (
        "AAM_SITE_ACCOUNT='a b' pretrain_node TABLE --epochs -3 --lr x --seed 1.5",
        "account is 'a b'",
        "--epochs -3: expected a whole number, 1 or more",
        "--lr x: expected a number",
        "--seed 1.5: expected a whole number, 0 or more",
    ),
    # Options.
    (
        "pretrain_single TABLE --epoch 3 --metadata-column ph --trim yes --lr",
        f"--epoch: {NO_OPTION}; --epochs?",
        f"--metadata-column: {NO_OPTION}",
        "--trim yes: takes no value",
        "--lr: expected one value that is not empty",
    ),
    (
        "train TABLE --metadata metadata.tsv --metadata-column ph --output-dir a b",
        "--output-dir a b: expected one value",
    ),
    ("ci_rocm TABLE", "--table: ci_rocm has no such option; expected --output-dir or --output"),
    ("unifrac --stripes 0 -- --table x", "--stripes 0: slurm/generate has no such option"),
    ("reach --time 'x y' -- true", "--time x y: expected"),
    # Inputs.
    (
        "stage --data TMP --submit --",
        "stage: no input to copy is given; for example: make stage TABLE=table.biom",
    ),
    (
        "predict --data TMP -- --table . --model image.sif --metadata=",
        "--table .: TMP is a folder, expected a file",
        "--model image.sif: TMP/image.sif is a file, expected a folder",
        "--metadata: is empty, expected a path",
    ),
    (
        "predict --data TMP -- --table '' --model ~no-such-user/m --output=",
        "--table: is empty, expected a path",
        "~no-such-user/m is missing",
        "--output '': expected one value that is not empty",
    ),
    ("stage TABLE --tree other/table.biom", "inputs of one name would replace each other"),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0][:60])
def test_all_problems_are_in_one_message(login, tmp_path, row):
    (tmp_path / "metadata.tsv").write_text("sample-id\tph\ns1\t7\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "table.biom").write_text("x")
    command, *problems = (text.replace("TMP", str(tmp_path)) for text in row)
    words = shlex.split(command.replace("TABLE", f"--data {tmp_path} -- --table table.biom", 1))
    variables = dict(word.split("=", 1) for word in words if word.startswith("AAM_SITE_"))
    message = login(*words[len(variables) :], status=2, **variables).stderr
    assert absent(message, *problems) == []


def test_files_that_are_not_a_run_are_left_alone(pretrain, of_table, shared):
    mine = ("--output-dir", "mine")
    (shared / "mine" / "slurm").mkdir(parents=True)
    pretrain(more=mine)
    (shared / "mine" / "thesis.tex").write_text("x")
    assert "holds files, but no run of aam" in of_table("pretrain_node", more=mine, status=2).stderr
    (shared / "mine" / "run.json").write_text("{}")
    pretrain(more=mine)


def test_a_shell_on_a_node_and_the_jobs_that_ran(login, make, tmp_path):
    for name in ("srun", "sacct"):
        write_program(tmp_path / "login" / name, f'echo "{name} $@"')
    shown = make("shell-node", SUBMIT="0", TIME="0:30:00").stdout
    parts = ("srun --job-name=aam", "--partition=cluster", "--exclusive --mem=0", " --pty ")
    assert absent(shown, *parts, "--time=0:30:00", "containers/run --engine sing") == []
    assert shown.endswith(f"{tmp_path}/image.sif bash\n")
    assert make("shell-node", TIME="0:30:00").stdout.startswith("srun --job-name=aam")
    missing = make("shell-node", 2, AAM_SITE_IMAGE=tmp_path / "no.sif").stderr
    assert "no.sif is missing; make container-rocm" in missing
    assert login("shell", "--engine", "none", program="python3").stdout.endswith(" reach bash\n")
    assert "--name=pretrain_single,pretrain_node" in make("jobs").stdout
    (tmp_path / "login" / "sacct").unlink()
    assert "sacct: not found on PATH; this needs a login node" in login("jobs", status=2).stderr


ACCOUNT = "Invalid account or account/partition combination specified"
REFUSALS = {
    "no account": "",
    "invalid partition specified: gpu": "this cluster has none of that name",
    f"Batch job submission failed: {ACCOUNT}": "ACCOUNT of make",
    "Invalid qos specification": "AAM_SITE_QOS=...",
    "Invalid generic resource (gres) specification": "no node has them",
    "Requested reservation is invalid": "scontrol show reservation",
}


def test_sbatch_that_refuses(of_table, tmp_path):
    for printed, remedy in REFUSALS.items():
        write_program(tmp_path / "login" / "sbatch", f"echo 'sbatch: error: {printed}' >&2\nexit 1")
        message = of_table("pretrain_node", "--submit", status=1).stderr
        assert printed in message
        assert remedy in message.partition("sbatch refused")[2]


def test_words_that_aam_has_are_kept(login, of_table, tmp_path):
    (tmp_path / "metadata.tsv").write_text("sample-id\tph\ta b\ns1\t7\t8\n")
    words = ("--metadata", "metadata.tsv", "--metadata-column", "ph", "a b", "--no-trim")
    of_table("train", more=(*words, "--seed=3", "--no_trim"))
    write_model(tmp_path / "model")
    predict = ["predict", "--data", tmp_path, "--", "--table"]
    login(*predict, "table.biom", "--model", "model", "model")
    login("stage", "--data", tmp_path, "--", "--table", "table.biom", "--tree", "tree.nwk")


def test_a_value_that_is_not_utf8_is_refused(of_table, tmp_path):
    (tmp_path / "metadata.tsv").write_text("sample-id\tph\ns1\t7\n")
    name = b"\xff".decode("utf-8", "surrogateescape")
    words = ("--metadata", "metadata.tsv", "--metadata-column", "ph", "--group-column", name)
    message = of_table("train", more=words, status=2, program="python3").stderr
    assert "--group-column '\\udcff': is not UTF-8" in message


def test_a_removed_option_is_answered(of_table, monkeypatch):
    gone = {"--stripe": "one process computes the whole matrix"}
    monkeypatch.setattr(options, "removed_options", lambda: gone)
    message = of_table("unifrac", more=("--tree", "tree.nwk", "--stripe", "1/2"), status=2).stderr
    assert "--stripe was removed: one process computes the whole matrix" in message
