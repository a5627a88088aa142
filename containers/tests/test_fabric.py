"""A node's own libfabric inside an image: small libraries stand for it and are compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers.lib.enter import copy_host_fabric
from tests.programs import absent, run_program


def compile_library(path: Path, text: str, *options: object) -> None:
    path.with_suffix(".c").write_text(text)
    run_program("gcc", "-shared", "-fPIC", path.with_suffix(".c"), *options, "-o", path)


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
    path = "/opt/fabric/host:/usr/lib/x86_64-linux-gnu"
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
