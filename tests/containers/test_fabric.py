"""The layer of communication: its archives, the script that builds it, and a node's own libfabric.

Small libraries stand for libfabric and the plugin, in archives of the same form (configure, make,
make install). They are compiled and loaded.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import http.server
import json
import runpy
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from containers.lib import fabric
from containers.lib.errors import InputError
from containers.lib.fabric import Source, choose_fabric, fetch, fill_fabric
from containers.lib.files import CONTAINERS
from containers.lib.host_fabric import copy_host_fabric

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


def archive(path: Path, files: dict[str, str]) -> Source:
    """Write an archive of sources, and return its record."""
    folder = path.parent / "sources" / path.name.partition(".tar")[0]
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "configure").chmod(0o755)
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, folder.name)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Source(f"http://localhost/{path.name}", digest, "MIT")


@pytest.fixture
def sources(tmp_path):
    """The two archives in a folder, and pins that name them."""
    folder = tmp_path / "archives"
    folder.mkdir()
    found = [
        archive(folder / "libfabric-1.20.1.tar.gz", LIBFABRIC),
        archive(folder / "aws-ofi-9.tar.gz", PLUGIN),
    ]
    table = '[[fabric.sources]]\nurl = "{0.url}"\nsha256 = "{0.sha256}"\nlicence = "MIT"\n'
    pins = tmp_path / "pins.toml"
    pins.write_text('[fabric]\npackages = ["make"]\n' + "".join(map(table.format, found)))
    return folder, pins


def compile_library(path: Path, text: str, *options: object) -> None:
    path.with_suffix(".c").write_text(text)
    command = ["gcc", "-shared", "-fPIC", path.with_suffix(".c"), *options, "-o", path]
    subprocess.run(list(map(str, command)), check=True)


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
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        return done

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
    folder, pins = sources
    (tmp_path / SITE).mkdir(parents=True)
    fill_fabric(tmp_path / "fabric", choose_fabric("", pins))
    build()
    assert [path.name for path in (tmp_path / "opt").iterdir()] == ["host"]
    shutil.rmtree(tmp_path / "fabric")
    fill_fabric(tmp_path / "fabric", choose_fabric(str(folder), pins))
    assert "libfabric without the plugin" in build().stdout
    assert len(json.loads((tmp_path / "opt/sources.json").read_text())) == 1


@needs_make
@pytest.mark.parametrize("damaged", ["fabric/aws-ofi-9.tar.gz", f"{SITE}/triton"])
def test_a_build_that_cannot_be_right_ends(sources, environment, build, tmp_path, damaged):
    folder, pins = sources
    fill_fabric(tmp_path / "fabric", choose_fabric(str(folder), pins))
    (tmp_path / damaged).rename(tmp_path / "moved")
    if damaged.endswith(".gz"):
        (tmp_path / damaged).write_bytes(b"x")
    expected = "expected" if damaged.endswith(".gz") else "include"
    assert expected in build(status=1).stderr
    assert not (tmp_path / "opt" / "sources.json").exists()


# --- archives ----------------------------------------------------------------------------------


@pytest.fixture
def served(sources):
    """Serves the archives on this machine; returns the sources with those addresses."""
    folder, pins = sources
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}/"
        pins.write_text(pins.read_text().replace("http://localhost/", here))
        yield folder, choose_fabric("1", pins).sources
        server.shutdown()


def test_archives_are_fetched_once_and_checked(served, tmp_path):
    folder, sources = served
    store = tmp_path / "store"
    assert fetch(sources[0], store).read_bytes() == (folder / sources[0].file).read_bytes()
    (folder / sources[0].file).unlink()
    assert fetch(sources[0], store).exists(), "it is there already"
    (folder / sources[1].file).write_bytes(b"another")
    with pytest.raises(InputError, match=r"SHA-256 is \w+, containers/pins\.toml has"):
        fetch(sources[1], store)
    with pytest.raises(InputError, match="name their folder: FABRIC=FOLDER"):
        fetch(Source("http://127.0.0.1:9/libfabric-1.tar.gz", "0", "MIT"), store)
    assert [path.name for path in store.iterdir()] == [sources[0].file]


def test_all_problems_of_a_folder_are_in_one_message(sources):
    folder, pins = sources
    (folder / "aws-ofi-9.tar.gz").unlink()
    (folder / "libfabric-1.20.1.tar.gz").write_bytes(b"x")
    with pytest.raises(InputError) as error:
        choose_fabric(str(folder), pins)
    assert len(error.value.problems) == 2
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
    assert "aws-ofi-nccl-1.20.0.tar.gz from https://github.com/aws/aws-ofi-nccl/" in plan
    assert "python3.12-venv libhwloc-dev make, from the archive" in plan
    assert "fabric" not in script(*words, "--dry-run").stdout.partition("command")[0]
    digest = "sha256:" + "1" * 64
    text = script("build", "oci", "rocm", "--print", "--digest", digest, "--fabric", "1").stdout
    assert "COPY fabric /opt/aam/fabric\n" in text
    assert "python3.12 /opt/aam/fabric/build.py /opt/fabric && " in text
    assert "ENV LD_LIBRARY_PATH=/opt/fabric/lib\n" in text
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
    assert ":/opt/fabric/host:ro" in shown
    path = "/opt/fabric/host:/opt/fabric/lib:/usr/lib/x86_64-linux-gnu"
    assert f"APPTAINERENV_LD_LIBRARY_PATH={path}" in shown
    assert "/opt/fabric/host/needed\n" in shown
    own = ("--env", "LD_LIBRARY_PATH=/mine")
    shown = script(*words, *own, *command, AAM_LOCAL=str(tmp_path)).stdout
    assert "APPTAINERENV_LD_LIBRARY_PATH=/mine\n" in shown


def test_a_node_without_it_is_told_where_to_look(node, script, tmp_path):
    (node / "libcxi.so.1").unlink()
    missing = ["--host-fabric", tmp_path / "nowhere", "--host-fabric", node]
    command = [tmp_path / "image.sif", "true"]
    done = script("run", *missing, *command, AAM_LOCAL=str(tmp_path), status=2)
    assert "holds none of libfabric.so.1, librccl-net.so, libnccl-net.so" in done.stderr
    assert "needs libcxi.so.1, which the loader of this node does not find" in done.stderr
    done = script("run", "--engine", "none", *missing, *command)
    assert "--host-fabric: without a container the node's own libfabric is used" in done.stderr
