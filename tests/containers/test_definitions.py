"""The two definitions: alike, safe for the machine that builds them, complete; and the programs."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
# A build leaves the definition of its image in the same folder.
DEFINITIONS = [CONTAINERS / "aam-cuda.def", CONTAINERS / "aam-rocm.def"]
both = pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)

# Folders that the engine may bind from the host during a build: they do not belong to the image.
HOST_FOLDERS = re.compile(
    r"(^|[\s\"'=])(/tmp|/var/tmp|/root|/home|/proc|/sys|/dev|\$HOME|~)(/|\s|$)"
)


def section(path: Path, name: str) -> str:
    match = re.search(rf"(?ms)^%{name}\b ?(.*?)(?=^%|\Z)", path.read_text())
    assert match, f"{path.name} has no %{name}"
    return match[1]


def commands(path: Path) -> list[str]:
    lines = section(path, "post").replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def test_they_differ_in_index_lock_and_labels_only():
    lines = [path.read_text().splitlines() for path in DEFINITIONS]
    changed = [line[1:].strip() for line in difflib.ndiff(*lines) if line[0] in "+-"]
    allowed = r"(INDEX|LOCK)=|org\.opencontainers\.image\.(title|description) |# "
    assert [line for line in changed if not re.match(allowed, line)] == []
    assert len(changed) == 12


@both
def test_post_stops_at_the_first_error_and_removes_nothing_of_the_host(path):
    """Apptainer binds /tmp and home of the host: files that %post removes there are lost."""
    steps = commands(path)
    assert steps[0] == "set -eu"
    installs = [step for step in steps if "apt-get install" in step]
    assert all("--no-install-recommends" in step for step in installs)
    names = ("ca-certificates", "gcc", "g++", "libc6-dev", "python{{ PYTHON }}-dev")
    assert [name for name in names if f" {name} " not in f"{installs[0]} "] == []
    removing = [step for step in steps if re.search(r"\b(rm|find|shred|truncate|mv|rsync)\b", step)]
    assert removing, "caches are removed"
    assert [step for step in removing if HOST_FOLDERS.search(step)] == []
    assert HOST_FOLDERS.search("rm -rf /root/cache /tmp/*"), "this went wrong once"


@both
def test_post_installs_from_the_lock_writes_the_bill_of_materials_and_cleans_up(path):
    post = "\n".join(commands(path))
    install = r"environment\.py /opt/venv /opt/aam/lock\.txt .*--wheel /opt/aam/wheels/\*\.whl"
    assert re.search(install, post)
    assert "sbom.py /opt/aam/lock.txt > /opt/aam/sbom.json" in post
    # The wheel of torch brings amdgpu.ids, which is linked.
    assert post.index("environment.py /opt/venv") < post.index("links.py /\n")
    assert "/var/lib/apt/lists/*" in post
    assert "--no-cache" in post
    assert "://" not in post, "indexes come from arguments, the lock and pip's settings"


@both
def test_other_sections_and_arguments(path):
    environment = section(path, "environment")
    assert "PATH=/opt/venv/bin:" in environment
    assert "PYTHONNOUSERSITE=1" in environment
    assert re.search(r"unset .*PYTHONSTARTUP", environment)
    assert not re.search(r"(?i)cosmos|scratch|vast|SLURM|NCCL|HSA_|MIOPEN", environment)
    labels = section(path, "labels")
    for name in ("revision", "version", "licenses", "base.name {{ BASE }}", "base.digest {{"):
        assert f"org.opencontainers.image.{name}" in labels
    assert "selftest.py" in section(path, "test")
    assert 'exec aam "$@"' in section(path, "runscript")
    assert "sbom.json" in section(path, "help")
    text = path.read_text()
    assert text.startswith("Bootstrap: {{ BOOTSTRAP }}\nFrom: {{ BASE }}@{{ DIGEST }}\n")
    assert ":latest" not in text + (CONTAINERS / "pins.toml").read_text()
    arguments = set(re.findall(r"^    (\w+)=", section(path, "arguments"), re.MULTILINE))
    assert arguments == set(re.findall(r"{{ (\w+) }}", text))


# --- the programs ------------------------------------------------------------------------------

SCRIPTS = [*CONTAINERS.rglob("*.py"), *(CONTAINERS / name for name in ("build", "run", "test"))]
SCRIPTS += [*(ROOT / "slurm" / "jobs").glob("*.py"), ROOT / "slurm" / "generate"]
CLUSTER = ("install-apptainer", "local-slurm", "make-base")
SCRIPTS += [ROOT / "tests" / "cluster" / name for name in CLUSTER]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_programs_are_short_and_need_the_standard_library_only(path):
    """They also take those modules of aam that need nothing else; the next test imports them."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions if node.end_lineno - node.lineno + 1 > 60] == []
    assert [node.name for node in functions if len(node.args.args) > 8] == []
    if path.name == "selftest.py":
        return
    imported = [
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    ]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    allowed = {*sys.stdlib_module_names, "aam", "containers", "slurm"}
    assert {name.split(".")[0] for name in imported} <= allowed


def test_programs_start_where_nothing_is_installed():
    names = [f"containers.lib.{path.stem}" for path in (CONTAINERS / "lib").glob("*.py")]
    names += [f"slurm.jobs.{path.stem}" for path in (ROOT / "slurm" / "jobs").glob("*.py")]
    source = f"import sys, importlib; sys.path.insert(0, {str(ROOT)!r})\n"
    source += f"for name in {names!r}: importlib.import_module(name)\n"
    source += "assert not {'torch', 'numpy'} & set(sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
