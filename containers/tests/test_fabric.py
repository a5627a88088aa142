"""The layer of communication: its archives, the script that builds it, and a node's own libfabric.

Small libraries stand for libfabric and the plugin, in archives of the same form (configure, make,
make install). They are compiled and loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from containers.lib import fabric
from containers.lib.enter import copy_host_fabric
from containers.lib.errors import InputError
from containers.lib.fabric import Source, choose_fabric, fetch, fill_fabric
from containers.lib.files import CONTAINERS
from tests.programs import absent, run_program

SITE = "venv/lib/python3.12/site-packages"
# As autotools write it: options in any order; configure ends if something is missing.
CONFIGURE = """#!/bin/sh
for word; do
    case $word in
        --prefix=*) P=${word#*=} ;; --with-libfabric=*) L=${word#*=} ;; --with-rocm=*|--with-cuda=*) G=${word#*=} ;;
    esac
done
[ ! -e net.c ] || { [ -e "$G/include/gpu.h" ] && [ -e "$L/include/rdma/fabric.h" ]; } || { echo "no GPU"; exit 1; }
sed "s,@P@,$P,g;s,@L@,$L,g;s,@G@,$G,g" Makefile.in >Makefile
"""
LIBFABRIC = {
    "configure": CONFIGURE,
    "fabric.c": "unsigned fi_version(void) { return 1u << 16 | 20; }\n",
    "Makefile.in": """\
libfabric.so.1: fabric.c
	gcc -shared -fPIC -Wl,-soname,$@ fabric.c -o $@
install:
	mkdir -p @P@/lib @P@/include/rdma
	cp libfabric.so.1 @P@/lib
	ln -sf libfabric.so.1 @P@/lib/libfabric.so
	echo 'unsigned fi_version(void);' >@P@/include/rdma/fabric.h
""",
}
PLUGIN = {
    "configure": CONFIGURE,
    "net.c": """\
#include <gpu.h>
#include <rdma/fabric.h>
int ncclNetPlugin_v8 = 8;
unsigned both(void) { return fi_version() + gpus(); }
""",
    "Makefile.in": """\
librccl-net.so: net.c
	gcc -shared -fPIC -I@L@/include -I@G@/include net.c -L@L@/lib -lfabric -L@G@/lib -lamdhip64 -Wl,-rpath,@L@/lib -o $@
install:
	cp librccl-net.so @P@/lib
""",
}
needs_make = pytest.mark.skipif(
    shutil.which("make") is None, reason="no make is installed, as in an image"
)


def archive(folder: Path, name: str, files: dict[str, str]) -> str:
    """Write an archive of sources, and return its table of pins.toml."""
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for member, text in files.items():
            entry = tarfile.TarInfo(f"{name}/{member}")
            entry.size, entry.mode = len(text), 0o755
            file.addfile(entry, io.BytesIO(text.encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    url = f"http://localhost/{path.name}"
    return f'[[fabric.sources]]\nurl = "{url}"\nsha256 = "{digest}"\nlicence = "MIT"\n'


@pytest.fixture
def sources(tmp_path):
    """The two archives in a folder, and pins that name them."""
    folder, pins = tmp_path / "archives", tmp_path / "pins.toml"
    folder.mkdir()
    tables = archive(folder, "libfabric-1.20.1", LIBFABRIC) + archive(folder, "aws-ofi-9", PLUGIN)
    pins.write_text(f'[fabric]\npackages = ["make"]\n{tables}')
    return folder, pins


def compile_library(path: Path, text: str, *options: object) -> None:
    path.with_suffix(".c").write_text(text)
    run_program("gcc", "-shared", "-fPIC", path.with_suffix(".c"), *options, "-o", path)


@pytest.fixture
def environment(tmp_path):
    """An environment whose torch brings a library of GPUs, and Triton its headers."""
    site = tmp_path / SITE
    for name in ("torch/lib", "triton/backends/amd/include"):
        (site / name).mkdir(parents=True)
    (site / "triton/backends/amd/include/gpu.h").write_text("unsigned gpus(void);\n")
    library = site / "torch/lib/libamdhip64.so"
    compile_library(library, "unsigned gpus(void) { return 4; }", "-Wl,-soname,libamdhip64.so.6")
    return tmp_path / "venv"


@pytest.fixture
def build(tmp_path):
    """Builds in tmp_path/opt what lies in tmp_path/fabric; `status` is how it must end."""

    def run(status: int = 0) -> subprocess.CompletedProcess[str]:
        words = [tmp_path / "fabric" / "build.py", tmp_path / "opt", tmp_path / "venv"]
        return run_program(sys.executable, *words, status=status)

    return run


@needs_make
def test_it_is_built_against_what_the_wheels_bring_and_loads(sources, environment, build, tmp_path):
    folder, pins = sources
    fill_fabric(tmp_path / "fabric", choose_fabric(str(folder), pins))
    prefix = tmp_path / "opt"
    assert f"--with-rocm={prefix}/gpu --without-mpi" in build().stdout
    assert not (prefix / "include").exists()
    assert (prefix / "host").is_dir(), "where a node's own libfabric is bound"
    built = json.loads((prefix / "sources.json").read_text())
    assert [source["version"] for source in built] == ["1.20.1", "9"]
    # As in an image: torch has loaded its own library, which the plugin finds by its soname.
    ctypes.CDLL(str(tmp_path / SITE / "torch/lib/libamdhip64.so"), ctypes.RTLD_GLOBAL)
    for name in ("librccl-net.so", "libnccl-net.so"):
        plugin = ctypes.CDLL(str(prefix / "lib" / name))
        assert plugin.both() == (1 << 16 | 20) + 4
        assert hasattr(plugin, "ncclNetPlugin_v8")


@needs_make
def test_without_a_gpu_only_libfabric_is_built_and_without_archives_nothing(
    sources, build, tmp_path
):
    (tmp_path / SITE).mkdir(parents=True)
    for folder, names in (("", ["host"]), (str(sources[0]), ["host", "lib", "sources.json"])):
        fill_fabric(tmp_path / "fabric", choose_fabric(folder, sources[1]))
        assert ("libfabric without the plugin" in build().stdout) == bool(folder)
        assert sorted(path.name for path in (tmp_path / "opt").iterdir()) == names
        shutil.rmtree(tmp_path / "fabric")


@needs_make
@pytest.mark.parametrize("damaged", ["fabric/aws-ofi-9.tar.gz", f"{SITE}/triton"])
def test_a_build_that_cannot_be_right_ends(sources, environment, build, tmp_path, damaged):
    folder, pins = sources
    fill_fabric(tmp_path / "fabric", choose_fabric(str(folder), pins))
    (tmp_path / damaged).rename(tmp_path / "moved")
    is_archive = damaged.endswith(".gz")
    if is_archive:
        (tmp_path / damaged).write_bytes(b"x")
    assert ("expected" if is_archive else "include") in build(status=1).stderr
    assert not (tmp_path / "opt" / "sources.json").exists()


# --- archives ----------------------------------------------------------------------------------


def test_archives_are_fetched_once_and_checked(sources, tmp_path):
    folder, pins = sources
    pins.write_text(pins.read_text().replace("http://localhost/", f"{folder.as_uri()}/"))
    first, second = choose_fabric("1", pins).sources
    store = tmp_path / "store"
    assert fetch(first, store).read_bytes() == (folder / first.file).read_bytes()
    (folder / first.file).unlink()
    assert fetch(first, store).exists(), "it is there already"
    (folder / second.file).write_bytes(b"another")
    with pytest.raises(InputError, match=r"SHA-256 is \w+, containers/pins\.toml has"):
        fetch(second, store)
    with pytest.raises(InputError, match="name their folder: FABRIC=FOLDER"):
        fetch(Source("http://127.0.0.1:9/libfabric-1.tar.gz", "0", "MIT"), store)
    assert [path.name for path in store.iterdir()] == [first.file]
    with pytest.raises(InputError) as error:
        choose_fabric(str(folder), pins)
    assert len(error.value.problems) == 2, "all problems of a folder are in one message"
    with pytest.raises(InputError, match="FABRIC=yes: expected 1"):
        choose_fabric("yes")


def test_the_pinned_sources_and_their_bill_of_materials(tmp_path):
    pinned = choose_fabric("1").sources
    assert all(len(source.sha256) == 64 for source in pinned)
    assert all(source.url.startswith("https://") for source in pinned)
    listed = runpy.run_path(str(CONTAINERS / "inside" / "sbom.py"))["built_from_source"]
    (tmp_path / "sources.json").write_text(json.dumps(fabric.describe(pinned)))
    libfabric, plugin = listed(tmp_path / "sources.json")
    assert libfabric["purl"] == "pkg:generic/libfabric@1.20.1"
    assert plugin["purl"] == "pkg:generic/aws-ofi-nccl@1.20.0"
    assert plugin["licenses"] == [{"expression": "Apache-2.0"}]
    assert listed(tmp_path / "nothing.json") == []


def test_a_plan_and_a_containerfile_name_it(script, tmp_path):
    words = ("build", "rocm", "--route", "definition")
    plan = script(*words, "--dry-run", "--fabric", "1").stdout
    parts = ["aws-ofi-nccl-1.20.0.tar.gz from https://github.com/aws/aws-ofi-nccl/"]
    assert absent(plan, *parts, "python3.12-venv libhwloc-dev make, from the archive") == []
    digest = "sha256:" + "1" * 64
    text = script("build", "oci", "rocm", "--print", "--digest", digest, "--fabric", "1").stdout
    parts = ["COPY fabric /opt/aam/fabric\n", "python3.12 /opt/aam/fabric/build.py /opt/fabric && "]
    assert absent(text, *parts, "ENV LD_LIBRARY_PATH=/opt/fabric/lib\n") == []
    out = ("--output", tmp_path / "out.sif")
    done = script(*words, *out, "--fabric", tmp_path / "nowhere", status=2)
    assert "nowhere: expected 1 (fetch the sources), or a folder" in done.stderr
    done = script(*words, *out, "--fabric", tmp_path, status=2)
    assert done.stderr.count("is missing; fetch it from https://github.com/") == 2
    assert not list(tmp_path.glob("*out.sif*"))


# --- a node's own libfabric --------------------------------------------------------------------


@pytest.fixture
def node(tmp_path):
    """A node's libfabric in lib64 of a prefix, which needs a library of the driver."""
    place = tmp_path / "cray" / "lib64"
    place.mkdir(parents=True)
    cxi = place / "libcxi.so.1"
    compile_library(cxi, "int cxi(void) { return 7; }", "-Wl,-soname,libcxi.so.1")
    text = "int cxi(void); int both(void) { return cxi(); }"
    link = ["-Wl,-soname,libfabric.so.1", cxi, f"-Wl,-rpath,{place}"]
    compile_library(place / "libfabric.so.1", text, *link)
    (tmp_path / "image.sif").touch()
    return place


def test_a_nodes_libfabric_is_copied_with_what_it_needs(node, tmp_path):
    target = copy_host_fabric([str(node.parent)], tmp_path)
    names = sorted(str(path.relative_to(target)) for path in target.rglob("*.so*"))
    assert names == ["libfabric.so.1", "needed/libcxi.so.1"], "the C library is the image's"
    before = (target / "libfabric.so.1").stat().st_ino
    copy_host_fabric([str(node)], tmp_path)
    assert (target / "libfabric.so.1").stat().st_ino == before, "another task may have loaded it"


def test_a_nodes_libfabric_is_bound_first_on_the_path(node, script, tmp_path):
    words = ["run", "--host-fabric", node, "--print"]
    command = [tmp_path / "image.sif", "aam", "doctor"]
    shown = script(*words, *command, AAM_LOCAL=str(tmp_path), status=0).stdout
    path = "/opt/fabric/host:/opt/fabric/lib:/usr/lib/x86_64-linux-gnu"
    parts = [":/opt/fabric/host:ro", f"APPTAINERENV_LD_LIBRARY_PATH={path}"]
    assert absent(shown, *parts, "/opt/fabric/host/needed\n") == []
    own = ("--env", "LD_LIBRARY_PATH=/mine")
    shown = script(*words, *own, *command, AAM_LOCAL=str(tmp_path)).stdout
    assert "APPTAINERENV_LD_LIBRARY_PATH=/mine\n" in shown


def test_a_node_without_it_is_told_where_to_look(node, script, tmp_path):
    (node / "libcxi.so.1").unlink()
    missing = ["--host-fabric", tmp_path / "nowhere", "--host-fabric", node]
    command = [tmp_path / "image.sif", "true"]
    done = script("run", *missing, *command, AAM_LOCAL=str(tmp_path), status=2)
    parts = ["holds none of libfabric.so.1, librccl-net.so, libnccl-net.so"]
    parts += ["needs libcxi.so.1, which the loader of this node does not find"]
    assert absent(done.stderr, *parts) == []
    done = script("run", "--engine", "none", *missing, *command)
    assert "--host-fabric: without a container the node's own libfabric is used" in done.stderr
