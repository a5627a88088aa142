"""What the tests of the images share: a simulated engine, and sidecars."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import run_program, write_program

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"

# Last on the path: inside an image, aam must be the image's own and not the copy next to the tests.
sys.path.append(str(ROOT))

# Answers like Apptainer. FAKE_OUTPUT: what a build prints; FAKE_STATUS: its exit status;
# FAKE_SLEEP: how long it takes. `exec` prints its words and its environment as JSON when FAKE_SHOW
# is set, else becomes the command.
ENGINE = """#!{python} -S
import json, os, sys, time
words = sys.argv[1:]
if words[0] == "--version":
    print(os.environ.get("FAKE_VERSION", "apptainer version 1.4.5"))
elif words[:2] == ["build", "--help"]:
    print(os.environ.get("FAKE_HELP", "--build-arg"))
elif words[0] == "build":
    out = words[words.index("--sandbox") + 1] if "--sandbox" in words else words[-2]
    if "--sandbox" not in words:
        open(out, "w").write("incomplete")
        print(os.environ.get("FAKE_OUTPUT", ""), flush=True)
        time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
        open(out, "w").write("complete")
        sys.exit(int(os.environ.get("FAKE_STATUS", "0")))
elif words[0] == "exec" and "FAKE_SHOW" in os.environ:
    print(json.dumps([words, dict(os.environ)]))
elif words[-2:-1] == ["sha256sum"] or words[-2:-1] == ["cat"]:
    print("e3b0c442 " + words[-1])
else:
    start = next(i for i, word in enumerate(words) if word.endswith(".sif")) + 1
    os.execvp(words[start], words[start:])
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A folder with a simulated `apptainer`."""
    text = ENGINE.format(python=sys.executable)
    return write_program(tmp_path / "engine" / "apptainer", text).parent


def record(image: Path, /, **changes: object) -> None:
    """Write the sidecar of an image."""
    words = ["flavour", "aam_sha256", "sbom_sha256", "definition_sha256", "python", "route"]
    fields: dict[str, object] = {name: {} for name in ("base", "lock", "git", "engine")}
    fields |= {**dict.fromkeys(words, "x"), "layer": None, "unverified": [], "reproducible": False}
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    fields |= {"image": {"file": image.name, "sha256": digest}, **changes}
    image.with_name(image.name + ".json").write_text(json.dumps(fields))


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with pins that ask for no disk: a simulated engine writes nothing."""
    folder = tmp_path_factory.mktemp("tree")
    left_out = shutil.ignore_patterns("*.sif*", "*.oci.tar")
    shutil.copytree(CONTAINERS, folder / "containers", ignore=left_out)
    (ROOT / "dist").mkdir(exist_ok=True)
    for path in ROOT.iterdir():
        if path.name != "containers":
            (folder / path.name).symlink_to(path)
    pins = folder / "containers" / "pins.toml"
    pins.write_text(re.sub(r"(?m)^disk_gb = .*", "disk_gb = [0, 0]", pins.read_text()))
    return folder


@pytest.fixture
def script(
    tmp_path: Path, engine: Path, tree: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs containers/build or containers/run with the simulated engine; `status`: how it ends."""

    def run(
        name: str,
        *words: object,
        status: int | None = None,
        cwd: Path = tmp_path,
        root: Path = tree,
        umask: int = -1,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        inherited = ("HOME", "PYTHONPATH", "LANG", "USER")
        environment = {name: os.environ[name] for name in inherited if name in os.environ}
        environment["PATH"] = f"{engine}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        environment |= {"AAM_SCRATCH": str(tmp_path / "scratch"), "TMPDIR": str(tmp_path)}
        options = {"cwd": cwd, "env": environment | variables, "umask": umask}
        program = root / "containers" / name
        return run_program(sys.executable, program, *words, status=status, **options)

    return run
