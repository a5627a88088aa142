"""The two definitions: alike, safe for the machine that builds them, complete; the Containerfile
that does the same; what apt is asked for; and the programs around them.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import shlex
import sys
import tarfile
from pathlib import Path

import pytest

from containers.lib.definition import arguments, fill, packages, section
from containers.lib.layer import UNPACK_PACKAGES
from containers.lib.oci import shell_steps
from containers.lib.pins import DIGEST, FLAVOURS, read_pins
from containers.lib.plan import Request, choose_base, choose_snapshot, locked_torch
from tests.programs import absent, run_program, write_program

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
# A build leaves the definition of its image in the same folder.
DEFINITIONS = [CONTAINERS / "aam-cuda.def", CONTAINERS / "aam-rocm.def"]
each_definition = pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)

# Folders that the engine may bind from the host during a build: they do not belong to the image.
HOST_FOLDERS = re.compile(
    r"(^|[\s\"'=])(/tmp|/var/tmp|/root|/home|/proc|/sys|/dev|\$HOME|~)(/|\s|$)"
)


def commands(path: Path) -> list[str]:
    lines = section(path, "post").replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def test_they_differ_in_index_lock_torch_and_labels_only():
    lines = [path.read_text().splitlines() for path in DEFINITIONS]
    changed = [line[1:].strip() for line in difflib.ndiff(*lines) if line[0] in "+-"]
    allowed = r"(INDEX|LOCK|TORCH)=|org\.opencontainers\.image\.(title|description) |# "
    assert [line for line in changed if not re.match(allowed, line)] == []
    assert len(changed) == 16


@each_definition
def test_post_stops_at_the_first_error_and_removes_nothing_of_the_host(path):
    """Apptainer binds /tmp and home of the host: files that %post removes there are lost."""
    steps = commands(path)
    assert steps[0] == "set -eu"
    installs = [step for step in steps if "apt-get install" in step]
    assert all("--no-install-recommends" in step for step in installs)
    names = ("ca-certificates", "gcc", "g++", "libc6-dev", "python{{ PYTHON }}-dev")
    assert absent(f"{installs[0]} ", *(f" {name} " for name in names)) == []
    removing = [step for step in steps if re.search(r"\b(rm|find|shred|truncate|mv|rsync)\b", step)]
    assert removing, "caches are removed"
    assert [step for step in removing if HOST_FOLDERS.search(step)] == []
    assert HOST_FOLDERS.search("rm -rf /root/cache /tmp/*"), "this went wrong once"
    assert "://" not in "\n".join(steps), "indexes come from arguments, the lock and pip's settings"


@each_definition
def test_the_environment_is_clean_and_every_argument_has_a_default(path):
    environment = section(path, "environment")
    assert absent(environment, "PATH=/opt/venv/bin:", "PYTHONNOUSERSITE=1") == []
    assert re.search(r"unset .*PYTHONSTARTUP", environment)
    assert not re.search(r"(?i)cosmos|scratch|vast|SLURM|NCCL|HSA_|MIOPEN", environment)
    text = path.read_text()
    assert text.startswith("Bootstrap: {{ BOOTSTRAP }}\nFrom: {{ BASE }}\n")
    assert ":latest" not in text + (CONTAINERS / "pins.toml").read_text()
    assert set(arguments(path)) == set(re.findall(r"{{ (\w+) }}", text))


@each_definition
def test_a_definition_pins_by_itself_and_no_other_file_does(path):
    """The container program alone builds it in the folder of the repository."""
    values = arguments(path)
    assert DIGEST.fullmatch(values["BASE"].partition("@")[2])
    assert re.fullmatch(r"\d{8}T\d{6}Z", values["SNAPSHOT"])
    pins = read_pins(path.stem.removeprefix("aam-"))
    assert values["TORCH"] == locked_torch(pins)
    assert f"# index: {values['INDEX']}\n" in (ROOT / values["LOCK"]).read_text()
    assert pins.lock == ROOT / values["LOCK"]
    names = [line.split()[0] for line in fill(section(path, "files"), values).splitlines() if line]
    assert [name for name in names if not (ROOT / name).exists()] == []
    others = (CONTAINERS / "pins.toml").read_text() + "".join(
        file.read_text() for file in (CONTAINERS / "lib").glob("*.py")
    )
    once = (values["BASE"].partition("@")[2], values["SNAPSHOT"], f"torch=={values['TORCH']}")
    assert [value for value in once if value in others] == []


# --- the Containerfile -------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_containerfile_does_what_the_definition_does(script, flavour):
    pins = read_pins(flavour)
    definition = pins.definition
    digest = ("--digest", "sha256:" + "1" * 64)
    text = script("build", "oci", flavour, "--print", *digest, status=0).stdout
    # Without a date: the digest is not the pinned one.
    values = {"PYTHON": pins.python, "INDEX": pins.index, "SNAPSHOT": ""}
    values |= {"REVISION": "@", "BASE": "@"}
    variables = "ENV PYTHONNOUSERSITE=1\nENV LC_ALL=C.UTF-8\n"
    parts = [f"FROM {pins.base.partition('@')[0]}@sha256:1111", variables]
    parts += [f"COPY containers/lock/{flavour}.txt /opt/aam/lock.txt\n"]
    assert absent(text, *parts, " ".join(packages(definition, values))) == []
    assert "{{" not in text
    at = 0
    text = re.sub(r'(AAM_COMMIT|base)="[^"]*"', r'\1="@"', text)
    for line in fill(section(definition, "post"), values).splitlines():
        if not line.strip().startswith("#"):
            at = text.index(line.strip().removesuffix("\\").rstrip(), at)
    assert text.count("LABEL org.") == 7
    # The image is tested while it is built.
    assert text.endswith('/opt/venv/bin/python /opt/aam/selftest.py\nENTRYPOINT ["aam"]\n')


PODMAN = r"""#!/bin/sh
echo "$@" >>"$0.calls"
for word; do last=$word; done
cp -r "$last" "$0.context"
echo "$@" | sed 's/.* oci-archive:\([^:]*\):.*/\1/' | xargs touch
"""


def test_podman_gets_the_files_that_a_containerfile_names(script, tmp_path):
    podman = write_program(tmp_path / "podman", PODMAN)
    base = tmp_path / "base"
    (base / "etc").mkdir(parents=True)
    (base / "etc" / "os-release").write_text("ID=debian\n")
    words = ("oci", "cpu", "--engine", podman, "--base", base, "--output", tmp_path / "out.oci.tar")
    script("build", *words, status=0)
    assert (tmp_path / "out.oci.tar").exists()
    context = tmp_path / "podman.context"
    lines = (context / "Containerfile").read_text().splitlines()
    assert lines[1:3] == ["FROM scratch", "ADD base.tar /"]
    copied = [shlex.split(line)[1] for line in lines if line.startswith("COPY")]
    assert {"aam", "plugins/aam-16s", "containers/lock/cpu.txt"} <= set(copied)
    assert all((context / name).exists() for name in copied)
    with tarfile.open(context / "base.tar") as file:
        assert "./etc/os-release" in file.getnames()
    (call,) = (tmp_path / "podman.calls").read_text().splitlines()
    options = "build --format oci --layers=false --force-rm --disable-compression=false "
    assert call.startswith(options)
    assert re.search(r"--tag oci-archive:\S+~out\.oci\.tar:aam-cpu:[\d.]+ ", call)


def test_all_problems_of_an_archive_are_in_one_message(script, tmp_path):
    words = ("--engine", "docker9", "--definition", "arm", "--digest", "latest")
    done = script("build", "oci", "cpu", *words, "--output", tmp_path / "a:b.tar", status=2)
    parts = ["ENGINE: docker9 not found", "DEFINITION=arm", "DIGEST=latest"]
    parts += ["an OCI archive has no colon in its path; OUTPUT=FILE names another"]
    assert absent(done.stderr, *parts) == []
    assert not list(tmp_path.glob("*.tar*"))


# --- Debian packages of one date ---------------------------------------------------------------

DATE = "20260601T000000Z"
# A list of packages that is not reached ends the update: apt would go on with an older one.
DATED = f"--snapshot {DATE} -o APT::Update::Error-Mode=any"
# Writes what it is asked for; `download` leaves a package of certificates, which dpkg-deb unpacks.
APT = """#!/bin/sh
echo "$@" >>"$CALLS"
for word; do
    case $word in download) : >ca-certificates_1_all.deb;; Acquire::https::CaInfo=*) cat "${word#*=}";; esac
done
case "$*" in *"$FAIL"*) exit 100;; esac
"""
DPKG = """#!/bin/sh
[ "$1" = -x ] || exit 1
mkdir -p "$3/usr/share/ca-certificates/mozilla"
echo "a certificate" >"$3/usr/share/ca-certificates/mozilla/a.crt"
"""


@pytest.fixture
def run(tmp_path):
    """Runs shell lines with a simulated apt-get; returns what apt was asked for, without the
    options of folders.
    """
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG)):
        write_program(tmp_path / "bin" / name, text)

    def calls(text: str, *words: str, fail: str = "nothing") -> list[str]:
        environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
        environment |= {"CALLS": f"{tmp_path}/calls", "FAIL": fail}
        done = run_program("sh", "-c", text, "sh", *words, env=environment, status=None)
        assert (done.returncode == 0) == (fail == "nothing"), done.stderr
        asked = (tmp_path / "calls").read_text().splitlines()
        assert done.stdout.count("a certificate") == sum("CaInfo" in line for line in asked)
        return [re.sub(r"-q |-o (Debug|Dir|APT::Sandbox)\S+ | -q|-y ", "", line) for line in asked]

    return calls


@pytest.fixture(params=["definition", "Containerfile"])
def post(request, tmp_path):
    """The steps of a definition up to the packages, or the one instruction of a Containerfile."""

    def steps(snapshot: str) -> str:
        (tmp_path / "aam").mkdir()
        values = arguments(DEFINITIONS[1]) | {"SNAPSHOT": snapshot}
        text = fill(section(DEFINITIONS[1], "post"), values).partition("\n    # The lock")[0]
        text = text.replace("/opt/aam", f"{tmp_path}/aam")
        return text if request.param == "definition" else shell_steps(text).removeprefix("RUN ")

    return steps


@pytest.mark.parametrize("snapshot", ["", DATE])
def test_what_a_definition_asks_for(run, post, tmp_path, snapshot):
    *first, last = run(post(snapshot))
    dated = f"{DATED} -o Acquire::https::CaInfo={tmp_path}/aam/certificates/all.crt"
    dates = ["update", "download ca-certificates", f"update {dated}"]
    assert first == (dates if snapshot else ["update"])
    assert last.startswith(f"install {dated} --no-install" if snapshot else "install --no-install")
    assert " ca-certificates gcc g++ " in last


@pytest.mark.parametrize("step", ["download", f"update -q --snapshot {DATE}"])
def test_a_step_of_a_snapshot_that_fails_ends_the_build(run, post, step):
    assert not any(line.startswith("install") for line in run(post(DATE), fail=step))


@pytest.mark.parametrize("snapshot", ["", DATE])
def test_what_a_layer_asks_for(run, tmp_path, snapshot):
    asked = run(UNPACK_PACKAGES, str(tmp_path / "layer"), snapshot, "gcc", "g++")
    dated = f"{DATED} -o Acquire::https::CaInfo=FILE " if snapshot else ""
    install = "install --no-install-recommends --download-only gcc g++"
    dates = ["update", "download ca-certificates", f"{dated}update"]
    expected = [*(dates if snapshot else ["update"]), dated + install]
    assert [re.sub(rf"{tmp_path}/\S+/all.crt", "FILE", line) for line in asked] == expected


def test_the_pinned_base_has_a_date_and_another_the_one_that_is_named(tmp_path):
    pins = read_pins("rocm")
    assert re.fullmatch(r"\d{8}T\d{6}Z", pins.snapshot)
    other = f"{pins.base.partition('@')[0]}@sha256:{'1' * 64}"
    cases = [("", "", pins.snapshot), (str(tmp_path), "", ""), (other, "", "")]
    cases += [("", "none", ""), (other, DATE, DATE), (str(tmp_path), DATE, DATE)]
    for base, requested, snapshot in cases:
        request = Request("rocm", base=base, snapshot=requested)
        assert choose_snapshot(request, pins, choose_base(request, pins)) == snapshot


# --- the programs ------------------------------------------------------------------------------

SCRIPTS = [path for path in CONTAINERS.rglob("*.py") if "tests" not in path.parts]
SCRIPTS += [*(CONTAINERS / name for name in ("build", "run", "test"))]
SCRIPTS += [*(ROOT / "slurm" / "jobs").glob("*.py"), ROOT / "slurm" / "generate"]
CLUSTER = ("install-apptainer", "local-slurm", "make-base")
SCRIPTS += [ROOT / "slurm" / "tests" / "cluster" / name for name in CLUSTER]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_programs_are_short_and_need_the_standard_library_only(path):
    """They also take those modules of aam that need nothing else; the next test imports them."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions if node.end_lineno - node.lineno + 1 > 60] == []
    assert [node.name for node in functions if len(node.args.args) > 8] == []
    imports = [node for node in nodes if isinstance(node, ast.Import)]
    imported = [alias.name for node in imports for alias in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    allowed = {*sys.stdlib_module_names, "aam", "containers", "slurm"}
    assert path.name == "selftest.py" or {name.split(".")[0] for name in imported} <= allowed


def test_programs_start_where_nothing_is_installed():
    names = [f"containers.lib.{path.stem}" for path in (CONTAINERS / "lib").glob("*.py")]
    names += [f"slurm.jobs.{path.stem}" for path in (ROOT / "slurm" / "jobs").glob("*.py")]
    source = f"import sys, importlib; sys.path.insert(0, {str(ROOT)!r})\n"
    source += f"for name in {names!r}: importlib.import_module(name)\n"
    source += "assert not {'torch', 'numpy'} & set(sys.modules)"
    run_program(sys.executable, "-I", "-S", "-c", source)
