"""The layer of communication: its archives and checksums, the script that builds it, and a node's
own libfabric.

libfabric and the plugin stand for themselves as small libraries in archives of the same form
(configure, make, make install), compiled and loaded: their sources lie where the tests may not go.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import http.server
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from containers.lib import fabric
from containers.lib.errors import InputError
from containers.lib.fabric import SCRIPT, Source, choose_fabric, fetch, fill_fabric
from containers.lib.files import CONTAINERS
from containers.lib.host_fabric import copy_host_fabric

DIGEST = "sha256:" + "1" * 64
# As autotools write it: options in any order, what is needed is looked for, and its absence ends
# configure.
CONFIGURE = """#!/bin/sh
for word; do
    case $word in
        --prefix=*) P=${word#*=} ;; --with-libfabric=*) L=${word#*=} ;; --with-rocm=*|--with-cuda=*) G=${word#*=} ;;
    esac
done
CHECKS
sed "s,@P@,$P,g;s,@L@,$L,g;s,@G@,$G,g" Makefile.in >Makefile
"""
LIBFABRIC = {
    "configure": CONFIGURE.replace("CHECKS", ""),
    "fabric.c": "unsigned fi_version(void) { return 1u << 16 | 20; }\n",
    "Makefile.in": "libfabric.so.1: fabric.c\n\tgcc -shared -fPIC -Wl,-soname,$@ fabric.c -o $@\n"
    "install:\n\tmkdir -p @P@/lib @P@/include/rdma\n\tcp libfabric.so.1 @P@/lib\n"
    "\tln -sf libfabric.so.1 @P@/lib/libfabric.so\n\techo 'unsigned fi_version(void);' "
    ">@P@/include/rdma/fabric.h\n",
}
PLUGIN = {
    "configure": CONFIGURE.replace(
        "CHECKS",
        '[ -e "$G/include/gpu.h" ] && [ -e "$L/include/rdma/fabric.h" ] || { echo "no GPU"; exit '
        "1; }",
    ),
    "net.c": "#include <gpu.h>\n#include <rdma/fabric.h>\n"
    "int ncclNetPlugin_v8 = 8;\nunsigned both(void) { return fi_version() + gpus(); }\n",
    "Makefile.in": "librccl-net.so: net.c\n\tgcc -shared -fPIC -I@L@/include -I@G@/include net.c "
    "-L@L@/lib -lfabric"
    " -L@G@/lib -lamdhip64 -Wl,-rpath,@L@/lib -o $@\ninstall:\n\tcp librccl-net.so @P@/lib\n",
}


def archive(path: Path, files: dict[str, str]) -> Source:
    """Write an archive of sources, and return its record."""
    folder = path.parent / "sources" / path.name.partition(".tar")[0]
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "configure").chmod(0o755)
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, folder.name)
    return Source(
        f"http://localhost/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest(), "MIT"
    )


needs_make = pytest.mark.skipif(
    shutil.which("make") is None, reason="no make is installed, as in an image"
)


@pytest.fixture
def sources(tmp_path):
    """The two archives in a folder, and pins that name them."""
    folder = tmp_path / "archives"
    folder.mkdir()
    found = [
        archive(folder / "libfabric-1.20.1.tar.gz", LIBFABRIC),
        archive(folder / "aws-ofi-9.tar.gz", PLUGIN),
    ]
    pins = tmp_path / "pins.toml"
    tables = [
        f'[[fabric.sources]]\nurl = "{s.url}"\nsha256 = "{s.sha256}"\nlicence = "MIT"\n'
        for s in found
    ]
    pins.write_text('[fabric]\npackages = ["make"]\n' + "".join(tables))
    return folder, pins


@pytest.fixture
def environment(tmp_path):
    """An environment whose torch brings a library of GPUs, and Triton its headers."""
    site = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    for name in ("torch/lib", "triton/backends/amd/include"):
        (site / name).mkdir(parents=True)
    (site / "triton/backends/amd/include/gpu.h").write_text("unsigned gpus(void);\n")
    compile_library(
        site / "torch/lib/libamdhip64.so", "unsigned gpus(void) { return 4; }", "libamdhip64.so.6"
    )
    return tmp_path / "venv"


def compile_library(path: Path, text: str, name: str = "", *options: object) -> None:
    path.with_suffix(".c").write_text(text)
    soname = [f"-Wl,-soname,{name}"] if name else []
    command = ["gcc", "-shared", "-fPIC", *soname, path.with_suffix(".c"), *options, "-o", path]
    subprocess.run(list(map(str, command)), check=True)


def build(folder: Path, prefix: Path, environment: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, folder / "build.py", prefix, environment]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


@needs_make
def test_it_is_built_against_what_the_wheels_bring_and_loads(sources, environment, tmp_path):
    folder, pins = sources
    fill_fabric(tmp_path / "fabric", choose_fabric(str(folder), pins))
    prefix = tmp_path / "opt"
    done = build(tmp_path / "fabric", prefix, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"--with-rocm={prefix}/gpu --without-mpi" in done.stdout
    assert {path.name for path in (prefix / "lib").iterdir()} >= {
        "librccl-net.so",
        "libnccl-net.so",
        "libfabric.so.1",
    }
    assert not (prefix / "include").exists()
    assert (prefix / "host").is_dir(), "where a node's own libfabric is bound"
    assert [s["version"] for s in json.loads((prefix / "sources.json").read_text())] == [
        "1.20.1",
        "9",
    ]
    # As in an image: torch has loaded its own library, which the plugin finds by the name within
    # it.
    ctypes.CDLL(
        str(environment / "lib/python3.12/site-packages/torch/lib/libamdhip64.so"),
        ctypes.RTLD_GLOBAL,
    )
    for name in ("librccl-net.so", "libnccl-net.so"):
        plugin = ctypes.CDLL(str(prefix / "lib" / name))
        assert plugin.both() == (1 << 16 | 20) + 4
        assert hasattr(plugin, "ncclNetPlugin_v8")


@needs_make
def test_without_a_gpu_runtime_only_libfabric_is_built(sources, tmp_path):
    folder, pins = sources
    (tmp_path / "venv/lib/python3.12/site-packages").mkdir(parents=True)
    fill_fabric(tmp_path / "fabric", choose_fabric(str(folder), pins))
    done = build(tmp_path / "fabric", tmp_path / "opt", tmp_path / "venv")
    assert done.returncode == 0, done.stderr
    assert "libfabric without the plugin" in done.stdout
    assert len(json.loads((tmp_path / "opt/sources.json").read_text())) == 1


def test_without_archives_nothing_is_built(tmp_path):
    fill_fabric(tmp_path / "fabric", choose_fabric(""))
    assert build(tmp_path / "fabric", tmp_path / "opt", tmp_path / "none").returncode == 0
    assert [path.name for path in (tmp_path / "opt").iterdir()] == ["host"]


@needs_make
@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda folder: (folder / "aws-ofi-9.tar.gz").write_bytes(b"x"), "expected"),
        (
            lambda folder: (folder.parent / "venv/lib/python3.12/site-packages/triton").rename(
                folder / "t"
            ),
            "include",
        ),
    ],
)
def test_a_build_that_cannot_be_right_ends(sources, environment, tmp_path, damage, part):
    folder, pins = sources
    fill_fabric(tmp_path / "fabric", choose_fabric(str(folder), pins))
    damage(tmp_path / "fabric")
    done = build(tmp_path / "fabric", tmp_path / "opt", environment)
    assert done.returncode == 1
    assert part in done.stderr
    assert not (tmp_path / "opt" / "sources.json").exists()


# --- archives ----------------------------------------------------------------------------------


@pytest.fixture
def served(sources, monkeypatch):
    """Serves the archives on this machine; returns the sources with those addresses."""
    folder, pins = sources
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = pins.read_text().replace(
            "http://localhost/", f"http://127.0.0.1:{server.server_port}/"
        )
        pins.write_text(text)
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
    with pytest.raises(
        InputError, match="fetch the archives elsewhere and name their folder: FABRIC=FOLDER"
    ):
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


def test_the_pinned_sources_have_addresses_names_and_checksums():
    pinned = choose_fabric("1")
    assert [source["name"] for source in fabric.describe(pinned.sources)] == [
        "libfabric",
        "aws-ofi-nccl",
    ]
    assert all(
        len(source.sha256) == 64 and source.url.startswith("https://") for source in pinned.sources
    )
    assert [source["version"] for source in fabric.describe(pinned.sources)] == ["1.20.1", "1.20.0"]
    assert "libhwloc-dev" in pinned.packages


# --- images ------------------------------------------------------------------------------------


def test_a_plan_and_a_containerfile_name_it(script, tmp_path):
    plan = script("build", "rocm", "--route", "definition", "--dry-run", "--fabric", "1").stdout
    assert "aws-ofi-nccl-1.20.0.tar.gz from https://github.com/aws/aws-ofi-nccl/" in plan
    assert "python3.12-venv libhwloc-dev make, from the archive" in plan
    plain = script("build", "rocm", "--route", "definition", "--dry-run").stdout
    assert "fabric" not in plain.partition("command")[0]
    text = script("build", "oci", "rocm", "--print", "--digest", DIGEST, "--fabric", "1").stdout
    assert "COPY fabric /opt/aam/fabric\n" in text
    assert "python3.12 /opt/aam/fabric/build.py /opt/fabric && " in text
    assert "ENV LD_LIBRARY_PATH=/opt/fabric/lib\n" in text
    done = script(
        "build",
        "rocm",
        "--fabric",
        tmp_path / "nowhere",
        "--output",
        tmp_path / "out.sif",
        status=2,
    )
    assert "nowhere: expected 1 (fetch the sources), or a folder" in done.stderr


def test_a_build_refuses_archives_before_the_engine_starts(script, tmp_path):
    done = script(
        "build",
        "rocm",
        "--fabric",
        tmp_path,
        "--route",
        "definition",
        "--output",
        tmp_path / "out.sif",
    )
    assert done.returncode == 2
    assert done.stderr.count("is missing; fetch it from https://github.com/") == 2
    assert not list(tmp_path.glob("*out.sif*"))


def test_the_bill_of_materials_names_what_was_built(tmp_path):
    spec = importlib.util.spec_from_file_location(
        "sbom_of_fabric", CONTAINERS / "inside" / "sbom.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "sources.json").write_text(json.dumps(fabric.describe(choose_fabric("1").sources)))
    entries = module.built_from_source(tmp_path / "sources.json")
    assert [entry["purl"] for entry in entries] == [
        "pkg:generic/libfabric@1.20.1",
        "pkg:generic/aws-ofi-nccl@1.20.0",
    ]
    assert entries[1]["licenses"] == [{"expression": "Apache-2.0"}]
    assert module.built_from_source(tmp_path / "nothing.json") == []


# --- a node's own libfabric --------------------------------------------------------------------


@pytest.fixture
def node(tmp_path):
    """A node's libfabric in lib64 of a prefix, which needs a library of the driver."""
    place = tmp_path / "cray" / "lib64"
    place.mkdir(parents=True)
    compile_library(place / "libcxi.so.1", "int cxi(void) { return 7; }", "libcxi.so.1")
    link = [place / "libcxi.so.1", f"-Wl,-rpath,{place}"]
    compile_library(
        place / "libfabric.so.1",
        "int cxi(void); int both(void) { return cxi(); }",
        "libfabric.so.1",
        *link,
    )
    return place


def test_a_nodes_libfabric_is_copied_with_what_it_needs(node, tmp_path):
    target = copy_host_fabric([str(node.parent)], tmp_path)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*.so*")) == [
        "libfabric.so.1",
        "needed/libcxi.so.1",
    ], "the C library is the image's"
    before = (target / "libfabric.so.1").stat().st_ino
    copy_host_fabric([str(node)], tmp_path)
    assert (target / "libfabric.so.1").stat().st_ino == before, "another task may have loaded it"


def test_a_nodes_libfabric_is_bound_first_on_the_path(node, script, tmp_path):
    (tmp_path / "image.sif").touch()
    words = ["run", "--host-fabric", node, "--print", tmp_path / "image.sif", "aam", "doctor"]
    done = script(*words, AAM_LOCAL=str(tmp_path), status=0)
    assert ":/opt/fabric/host:ro" in done.stdout
    path = "/opt/fabric/host:/opt/fabric/lib:/usr/lib/x86_64-linux-gnu"
    assert f"APPTAINERENV_LD_LIBRARY_PATH={path}" in done.stdout
    assert "/opt/fabric/host/needed\n" in done.stdout
    own = script(*words[:3], "--env", "LD_LIBRARY_PATH=/mine", *words[3:], AAM_LOCAL=str(tmp_path))
    assert "APPTAINERENV_LD_LIBRARY_PATH=/mine\n" in own.stdout


def test_a_node_without_it_is_told_where_to_look(node, script, tmp_path):
    (tmp_path / "image.sif").touch()
    (node / "libcxi.so.1").unlink()
    missing = ["--host-fabric", tmp_path / "nowhere", "--host-fabric", node]
    done = script(
        "run", *missing, tmp_path / "image.sif", "true", AAM_LOCAL=str(tmp_path), status=2
    )
    assert "holds none of libfabric.so.1, librccl-net.so, libnccl-net.so" in done.stderr
    assert (
        "needs libcxi.so.1, which the loader of this node does not find: load the module"
        in done.stderr
    )
    done = script("run", "--engine", "none", *missing, tmp_path / "image.sif", "true")
    assert "--host-fabric: without a container the node's own libfabric is used" in done.stderr


def test_the_script_needs_no_more_than_the_python_of_the_image():
    assert SCRIPT.is_relative_to(CONTAINERS / "inside")
