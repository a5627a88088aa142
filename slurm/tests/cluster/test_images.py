"""Images that are really built, entered, checked and damaged, by one worker: the checkout is
changed.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from containers.lib.files import revision
from containers.lib.wheels import wheel_folders
from slurm.tests.cluster.conftest import GUEST, ROOT, check_out, environment
from tests.programs import run_program

pytestmark = pytest.mark.cluster
STUDY = "--table study/table.biom --metadata study/metadata.tsv --rarefy-depth 1000"
HELD_OUT = "--split-column fold --test-fold 0 --group-column subject --epochs 2"
# A small simulated study from pretraining to predictions, on one thread.
DEMO = [
    "aam.data.simulate study --samples 60 --asvs 80 --length 60 --depth 2000",
    f"aam pretrain {STUDY} --tree study/tree.nwk {HELD_OUT} --output-dir pre --threads 1",
    f"aam train {STUDY} --metadata-column ph biome --pretrained-encoder pre/model {HELD_OUT} "
    "--output-dir tune --threads 1",
    "aam predict --model tune/model --table study/table.biom --output predictions.tsv --threads 1",
]


def sidecar(image: Path) -> dict:
    return json.loads(image.with_name(image.name + ".json").read_text())


def bill(shell, image: Path) -> dict:
    return json.loads(shell("apptainer", "exec", image, "cat", "/opt/aam/sbom.json").stdout)


def test_an_image_agrees_with_its_sidecar_and_labels(image, make, shell, base):
    recorded = sidecar(image)
    commit, dirty = revision()
    assert recorded["git"] == {"commit": commit, "dirty": dirty}
    assert recorded["route"] == "definition"
    assert recorded["base"]["name"] == "bookworm"
    labels = json.loads(shell("apptainer", "inspect", "--labels", "--json", image).stdout)
    labels = labels["data"]["attributes"]["labels"]
    assert labels["org.opencontainers.image.base.digest"] == recorded["base"]["digest"]
    assert labels["org.opencontainers.image.revision"] == recorded["git"]["commit"]
    assert "agrees with its sidecar" in make("verify-cpu").stdout
    names = {component["name"] for component in bill(shell, image)["components"]}
    assert {"torch", "attention-all-microbes", "debian/gcc", "debian/python3.11-dev"} <= names
    before = image.stat().st_mtime_ns
    make("container-cpu", f"BASE={base}")
    assert image.stat().st_mtime_ns == before, "without a change nothing is built"


def test_run_keeps_values_statuses_and_signals(image, shell, tmp_path):
    run = ROOT / "containers" / "run"
    hostile = "a b\"c$(touch x)`y` 'z'\n*\\n;,"
    show = "import os, sys; print(repr(os.environ['AAM_X']), 'FOO' in os.environ, sys.prefix, "
    command = [run, image, "python", "-c", show + "sys.flags.no_user_site)"]
    done = shell(*command, cwd=tmp_path, AAM_X=hostile, FOO="1", PYTHONSTARTUP="/x")
    assert done.stdout.strip() == f"{hostile!r} False /opt/venv 1"
    assert shell(run, image, "sh", "-c", "exit 85", cwd=tmp_path, status=85)
    loop = 'trap "exit 7" USR2; touch ready; while :; do sleep 0.1; done'
    process = subprocess.Popen([run, image, "sh", "-c", loop], cwd=tmp_path, env=environment())
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(timeout=30) == 7
    contained = shell(run, "--contain", image, "sh", "-c", "ls /; df /tmp", cwd=tmp_path)
    assert "opt" in contained.stdout


def test_a_gpu_session_without_a_gpu_fails(image, checkout, shell, monkeypatch):
    """The CPU image stands in for that of the vendor: only the GPU is missing. That for CUDA
    differs in a flag.
    """
    # As on a compute node; on a login node the session would ask SLURM for a node.
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    gpu = image.with_name("aam-rocm.sif")
    gpu.symlink_to(image.name)
    shutil.copy(image.with_name(image.name + ".json"), gpu.with_name(gpu.name + ".json"))
    try:
        done = shell(sys.executable, "-m", "nox", "-s", "test_rocm", cwd=checkout, status=None)
        assert done.returncode == 1
        assert "no GPU is visible to torch" in done.stdout + done.stderr
        assert "--no-gpu" in done.stdout + done.stderr
    finally:
        gpu.unlink()


def demo(shell, folder: Path, *before: object) -> dict[str, bytes]:
    """Run the commands of `DEMO` in a folder; return the files that must be the same to the bit."""
    folder.mkdir()
    for words in DEMO:
        shell(*before, "-m", *words.split(), cwd=folder)
    results = [*folder.glob("*/model/*.safetensors"), folder / "predictions.tsv"]
    assert len(results) >= 3
    return {str(path.relative_to(folder)): path.read_bytes() for path in results}


def test_the_demo_gives_the_same_bits_inside_and_outside(image, shell, tmp_path):
    outside = demo(shell, tmp_path / "outside", sys.executable)
    inside = demo(shell, tmp_path / "inside", ROOT / "containers" / "run", image, "python")
    assert outside == inside


ALONE = ["--mksquashfs-args", "-comp zstd -Xcompression-level 1"]


@pytest.mark.parametrize("name", ["rocm", "cuda"])
def test_slow_the_container_program_alone_builds_a_definition(
    name, shell, base, workshop, apptainer
):
    """From a local base to its end, with the lock that a machine without a network can install.

    Its defaults end where the registry is not reached: the reference is complete.
    """
    definition, out = ROOT / "containers" / f"aam-{name}.def", workshop / f"{name}-alone.sif"
    pinned = shell(apptainer, "build", out, definition, cwd=ROOT, status=None)
    assert "could not parse" not in pinned.stderr
    assert pinned.returncode == 0 or "Fetching OCI image" in pinned.stderr
    values = {"BOOTSTRAP": "localimage", "BASE": base, "PYTHON": "3.11", "SNAPSHOT": ""}
    values |= {"LOCK": "containers/lock/cpu.txt", "INDEX": ""}
    words = [word for key, value in values.items() for word in ("--build-arg", f"{key}={value}")]
    words += [word for path in wheel_folders() for word in ("--bind", f"{path}:{path}:ro")]
    shell(apptainer, "build", "--force", *ALONE, *words, out, definition, cwd=ROOT)
    shown = shell(apptainer, "run", "--cleanenv", out, "--version").stdout
    assert shown.startswith("aam ")


def test_an_edited_lock_is_refused(image, make, checkout, shell, workshop):
    lock = checkout / "containers" / "lock" / "cpu.txt"
    right = lock.read_text()
    lock.write_text(right.replace("--hash=sha256:6", "--hash=sha256:7"))
    try:
        assert "cpu.txt: SHA-256" in make("verify-cpu", status=None).stderr
        words = [sys.executable, "containers/inside/environment.py", workshop / "venv", lock]
        assert "environment: torch" in shell(*words, cwd=checkout, status=1, PIP_RETRIES="0").stderr
    finally:
        lock.write_text(right)
        os.utime(lock, (0, 0))
    make("verify-cpu")


def test_an_interrupted_build_leaves_nothing(image, checkout, base, workshop, said_by_processes):
    before = image.stat()
    command = [sys.executable, "containers/build", "cpu", "--base", str(base)]
    # Its name in the engine's command line, which jobs that use the image do not have.
    command += ["--route", "definition", "--output", str(workshop / "interrupted.sif")]
    variables = environment(AAM_SCRATCH=str(workshop / "scratch"))
    options = {"cwd": checkout, "env": variables, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **options)
    for line in process.stderr:
        if "Unpacking" in line or "Selecting" in line:
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(workshop.rglob("*interrupted.sif*")) == []
    assert list((workshop / "scratch").glob("build-*")) == []
    assert (image.stat().st_ino, image.stat().st_size) == (before.st_ino, before.st_size)
    assert b"interrupted.sif" not in said_by_processes(), "the engine ends with the build"


# --- slow: run by nox -s images, not at every change -------------------------------------------


def test_slow_both_definitions_give_the_same_bill_of_materials(image, make, shell, checkout, base):
    """Also where the checkout is that of a user with umask 077, closed to others."""
    other_image = checkout / "containers" / "aam-other.sif"
    words = ["cpu", "--base", base, "--definition", "rocm", "--output", other_image]
    closed = [checkout / "containers" / "inside", checkout / "containers" / "lock"]
    shell("chmod", "-R", "go=", *closed)
    command = [sys.executable, "containers/build", *words]
    shell("sh", "-c", 'umask 077; exec "$@"', "sh", *command, cwd=checkout)
    shell("chmod", "-R", "go+rX", *closed)
    unreadable = ["find", "/opt", "!", "-type", "l", "!", "-perm", "-004"]
    assert shell("apptainer", "exec", other_image, *unreadable).stdout == ""
    written = checkout.glob("containers/aam-other.sif*")
    assert all(path.stat().st_mode & 0o004 for path in written)
    assert bill(shell, image) == bill(shell, other_image)
    own, other = sidecar(image), sidecar(other_image)
    for key in ("lock", "sbom_sha256", "aam_sha256", "base", "git"):
        assert own[key] == other[key]
    assert own["definition_sha256"] != other["definition_sha256"]


@pytest.fixture
def guest(workshop):
    """Runs a command as a user without subordinate ids and without fakeroot."""
    try:
        pwd.getpwnam(GUEST)
    except KeyError:
        command = ["useradd", "--system", "--no-create-home", "--home-dir", workshop / "guest"]
        subprocess.run([*command, GUEST], check=True)
    home = workshop / "guest"
    home.mkdir()
    shutil.chown(home, GUEST)
    assert all(GUEST not in Path(name).read_text() for name in ("/etc/subuid", "/etc/subgid"))
    hide = "for f in $(which -a fakeroot proot 2>/dev/null); do mount --bind /dev/null $f; done; "
    become = f"exec setpriv --reuid {GUEST} --regid {GUEST} --clear-groups "

    def run(*words, cwd, status=0):
        inherited = {k for k in os.environ if k.startswith(("PIP_", "SSL_")) or "proxy" in k}
        variables = {k: os.environ[k] for k in inherited} | {"USER": GUEST, "HOME": str(home)}
        variables["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        variables["PIP_FIND_LINKS"] = " ".join(map(str, wheel_folders()))
        variables |= {"AAM_SCRATCH": str(home / "scratch"), "GIT_CONFIG_COUNT": "1"}
        variables |= {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        command = ["unshare", "--mount", "sh", "-c", f'{hide}umask 077; {become}"$@"', "guest"]
        return run_program(*command, *words, cwd=cwd, env=variables, status=status)

    return run


def test_slow_a_user_without_rights_gets_a_layer(guest, shell, workshop, base):
    shell("apptainer", "build", workshop / "base.sif", base)
    checkout = check_out(workshop / "guest" / "checkout", shell)
    shell("chown", "-R", f"{GUEST}:", checkout)
    base = f"BASE={workshop}/base.sif"
    python = "PYTHON=/usr/bin/python3"
    done = guest("make", "container-cpu", base, "IMAGE_PYTHON=3.11", python, cwd=checkout)
    assert "cannot build a definition here" in done.stdout
    image = checkout / "containers" / "aam-cpu.sif"
    recorded = sidecar(image)
    assert recorded["route"] == "layer"
    assert recorded["layer"]["file"] == "aam-cpu.squashfs"
    guest("make", "verify-cpu", python, cwd=checkout)
    run = [checkout / "containers" / "run", image]
    assert guest(*run, "aam", "--version", cwd=checkout).stdout.startswith("aam ")
    show = "import sys, torch; print(sys.prefix, torch.__version__)"
    done = guest(*run, "python", "-c", show, cwd=checkout)
    assert done.stdout.startswith("/opt/venv 2.")
    listed = json.loads(guest(*run, "cat", "/opt/aam/sbom.json", cwd=checkout).stdout)
    assert {"debian/gcc", "torch"} <= {component["name"] for component in listed["components"]}


@pytest.fixture
def buildah(shell, apptainer, once):
    """Buildah with runc, installed if they are missing: Debian's crun refuses hosts with both
    versions of cgroups.
    """
    with once():
        if not (shutil.which("buildah") and shutil.which("runc")):
            shell("apt-get", "update", "-q")
            shell("apt-get", "install", "-y", "-q", "--no-install-recommends", "buildah", "runc")


def test_slow_an_oci_archive_is_built_to_its_end_and_becomes_an_image(
    buildah, checkout, image, make, shell, base
):
    storage = ["buildah", "images", "--all", "--quiet"]
    before = shell(*storage, BUILDAH_RUNTIME="runc").stdout
    make("oci-cpu", f"BASE={base}", BUILDAH_RUNTIME="runc", STORAGE_DRIVER="vfs")
    archive = checkout / "containers" / "aam-cpu.oci.tar"
    with tarfile.open(archive) as file:
        index = json.load(file.extractfile("index.json"))
        (manifest,) = index["manifests"]
        described = json.load(file.extractfile(f"blobs/{manifest['digest'].replace(':', '/')}"))
    assert {layer["mediaType"].rpartition("+")[2] for layer in described["layers"]} == {"gzip"}
    assert manifest["annotations"]["org.opencontainers.image.ref.name"].startswith("aam-cpu:")
    assert shell(*storage).stdout == before, "nothing of it stays in the storage"
    other_image = checkout / "containers" / "aam-from-oci.sif"
    fast = ["--mksquashfs-args", "-comp zstd -Xcompression-level 1"]
    shell("apptainer", "build", *fast, other_image, f"oci-archive://{archive}")
    selftest = ["exec", "--cleanenv", other_image, "python", "/opt/aam/selftest.py"]
    assert "training: " in shell("apptainer", *selftest).stdout
    versions = [
        shell(ROOT / "containers" / "run", sif, "aam", "--version") for sif in (other_image, image)
    ]
    assert versions[0].stdout == versions[1].stdout
    assert bill(shell, other_image) == bill(shell, image)
