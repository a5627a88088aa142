"""Files and folders that appear whole, limits of what is read, manifests."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from aam.errors import InputError
from aam.files import atomic
from aam.files.atomic import (
    MANIFEST,
    atomic_file,
    atomic_folder,
    check_writable,
    file_digest,
    final_name,
    read_json,
    relative_to_cwd,
    remove_partial,
    verify_manifest,
    write_manifest,
    write_text,
)
from tests.refusals import refusal


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_path_is_said_as_a_person_would_type_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(relative_to_cwd(tmp_path / "run" / "report.html")) == "run/report.html"
    assert relative_to_cwd(tmp_path.parent / "other") == tmp_path.parent / "other"


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "folder" / "a.txt"
    for before, text in ((None, "whole"), ("whole", "newer")):
        with atomic_file(path) as temporary:
            assert temporary.parent == path.parent
            temporary.write_text(text)
            assert (path.read_text() if path.exists() else None) == before
        assert path.read_text() == text
    assert names(path.parent) == ["a.txt"]


@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
@pytest.mark.parametrize(("writing", "name"), [(atomic_file, ""), (atomic_folder, "a")])
def test_an_error_leaves_the_old_one_and_nothing_else(tmp_path, writing, name, error):
    path = tmp_path / "new"

    def stopped() -> None:
        with writing(path) as temporary:
            (temporary / name).write_text("half")
            raise error

    for text in (None, "old"):
        if text is not None:
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)
        with pytest.raises(error):
            stopped()
        assert names(tmp_path) == ([] if text is None else ["new"])
    assert (path / name).read_text() == "old"


@pytest.mark.parametrize("writing", [atomic_file, atomic_folder])
def test_a_full_disk_is_named_by_what_was_to_be_written(tmp_path, writing):
    with pytest.raises(OSError, match="full") as caught, writing(tmp_path / "new"):
        raise OSError(errno.ENOSPC, "full")
    assert final_name(caught.value.filename) == tmp_path / "new"


def test_a_folder_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "run" / "model"
    for before, name in (({}, "inner/a"), ({"inner/a": "1"}, "b")):
        with atomic_folder(path) as temporary:
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text("1")
            assert contents(path) == before
        assert contents(path) == {name: "1"}
    assert names(path.parent) == ["model"]


def test_the_old_folder_goes_after_the_new_one_stands(tmp_path, monkeypatch):
    """Failure 12 of the predecessor: the old best was deleted before the new one was there."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "a").write_text("old")

    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if Path(target) == path and (self / "a").read_text() == "new":
            raise OSError("the disk is gone")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="the disk is gone"), atomic_folder(path) as temporary:
        (temporary / "a").write_text("new")
    assert contents(tmp_path) == {"model/a": "old"}


def test_outputs_are_checked_before_the_work(tmp_path, monkeypatch):
    check_writable(tmp_path / "new" / "deeper" / "a.tsv")
    (tmp_path / "a.tsv").write_text("old")
    exists = refusal(check_writable, tmp_path / "a.tsv")
    assert "a.tsv: exists already; choose another output or pass --overwrite" in exists
    check_writable(tmp_path / "a.tsv", overwrite=True)
    inside = refusal(check_writable, tmp_path / "a.tsv" / "b" / "c.tsv")
    assert "a.tsv is a file, expected a folder" in inside
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "locked")
    locked = refusal(check_writable, tmp_path / "locked" / "new" / "b.tsv")
    assert "no permission to write in" in locked
    assert names(tmp_path) == ["a.tsv", "locked"], "checking makes nothing"


def test_names_too_long_and_links_that_lead_nowhere_are_no_outputs(tmp_path):
    assert "the name is too long for a file" in refusal(check_writable, tmp_path / ("a" * 240))
    assert "cannot be written (File name too long" in refusal(
        check_writable, tmp_path / ("b" * 300)
    )
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    for path in ("dangling", "dangling/a.tsv", "loop", "loop/deeper/a.tsv"):
        message = refusal(check_writable, tmp_path / path, overwrite=True)
        assert f"{path.split('/')[0]} is a link that leads nowhere" in message


# --- what killed processes leave ---------------------------------------------------------------


def left_by(process: int, path: Path, prefix: str = ".partial") -> Path:
    """A half written file of a process of this host."""
    stale = path.with_name(f"{prefix}~{socket.gethostname()}~{process}~{path.name}")
    stale.write_text("half")
    return stale


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    source = "import os; print(os.getpid())"
    return int(
        subprocess.run([sys.executable, "-c", source], capture_output=True, check=True).stdout
    )


@pytest.mark.parametrize("name", ["a.txt", "a[1]*?.txt", "ü~b.txt"])
def test_what_a_dead_process_left_is_removed_by_the_next_writer(tmp_path, dead, name):
    path = tmp_path / name
    left_by(dead, path)
    running, other = left_by(os.getppid(), path), left_by(dead, tmp_path / "other.txt")
    foreign = path.with_name(f".partial~another-host~{dead}~{name}")
    foreign.write_text("half")
    write_text(path, "whole")
    assert names(tmp_path) == sorted([name, running.name, other.name, foreign.name])
    remove_partial(tmp_path)
    assert names(tmp_path) == [name]


def test_what_was_moved_aside_comes_back(tmp_path, dead):
    (tmp_path / f".replaced~{socket.gethostname()}~{dead}~model").mkdir()
    (tmp_path / f".replaced~{socket.gethostname()}~{dead}~model" / "a").write_text("old")
    left_by(dead, tmp_path / "b.txt", ".replaced")
    (tmp_path / "b.txt").write_text("new")
    remove_partial(tmp_path)
    assert contents(tmp_path) == {"b.txt": "new", "model/a": "old"}


# --- JSON --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" + b" " * (3 << 20) + b"]", "bytes, at most 2097152 are read"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
        (None, "no such file"),
    ],
)
def test_json_that_cannot_be_read_is_bad_input(tmp_path, content, message):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    refused = refusal(read_json, path, 2 << 20)
    assert message in refused
    assert "BIOM" not in refused


# --- manifests ---------------------------------------------------------------------------------


def test_every_file_that_differs_is_named_and_none_outside_is_read(tmp_path, monkeypatch):
    inside = tmp_path / "in"
    inside.mkdir()
    for name in ("a", "b", "c", "d", "pipe"):
        (inside / name).write_text(name)
    (tmp_path / "secret").write_text("2")
    write_manifest(inside)
    verify_manifest(inside)
    (inside / "a").write_text("x")
    (inside / "b").unlink()
    (inside / "d").write_text("longer")
    (inside / "pipe").unlink()
    os.mkfifo(inside / "pipe")
    manifest = json.loads((inside / MANIFEST).read_text())
    outside = ("../secret", str(tmp_path / "secret"), "x" * 5000, "a\0b")
    digest = {"bytes": 1, "sha256": file_digest(tmp_path / "secret")}
    manifest["files"] |= dict.fromkeys(outside, digest)
    (inside / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputError) as caught:
        verify_manifest(inside)
    assert caught.value.problems == tuple(
        f"{inside}/{name}: missing or damaged (its checksum differs)"
        for name in ("a", "b", "d", "pipe", *outside)
    )
    hashed = list[Path]()
    monkeypatch.setattr(atomic, "file_digest", hashed.append)
    refusal(verify_manifest, inside)
    assert [path.name for path in hashed] == ["a", "c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "damaged"),
        ('{"format": 1}', "damaged"),
        ('{"format": 1, "files": {"a": []}}', "damaged"),
        ('{"format": 9, "files": {}}', "format 9"),
    ],
)
def test_a_manifest_of_another_form_is_refused(tmp_path, content, message):
    (tmp_path / MANIFEST).write_text(content)
    assert message in refusal(verify_manifest, tmp_path)


# --- a folder contains what its manifest lists, and nothing else ---------------------------------


def add_file(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("new")


@pytest.mark.parametrize(
    ("add", "name"),
    [
        (lambda folder: add_file(folder, "members.safetensors"), "members.safetensors"),
        (lambda folder: add_file(folder, ".hidden"), ".hidden"),
        (lambda folder: add_file(folder, "inner/b"), "inner/b"),
        (lambda folder: add_file(folder, "new/manifest.json"), "new/manifest.json"),
        (lambda folder: (folder / "link").symlink_to("a"), "link"),
        (lambda folder: (folder / "broken").symlink_to("nothing"), "broken"),
        (lambda folder: (folder / "folder").symlink_to(folder.parent), "folder"),
        (lambda folder: (folder / "x\n\udcff").write_text(""), r"x\n\udcff"),
    ],
)
def test_a_file_that_the_manifest_does_not_list_is_refused(tmp_path, add, name):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in ("a", "inner/c", ".listed"):
        add_file(folder, path)
    write_manifest(folder)
    (folder / "empty").mkdir()
    verify_manifest(folder)
    add(folder)
    message = refusal(verify_manifest, folder)
    assert f"contains files that manifest.json does not list: '{name}'; remove" in message.replace(
        "\\\\", "\\"
    )


@pytest.mark.parametrize("name", ["../outside", "./a", "inner/../a", "/etc/hostname", "inner", ""])
def test_a_name_that_is_not_that_of_a_file_in_the_folder_is_refused(tmp_path, name):
    folder = tmp_path / "model"
    for path in (folder / "a", tmp_path / "outside"):
        add_file(path.parent, path.name)
    write_manifest(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][name] = manifest["files"].pop("a")
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert str(folder) in refusal(verify_manifest, folder)
