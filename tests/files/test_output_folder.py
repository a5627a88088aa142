"""Folders of results: what is replaced, what is refused, and the lock."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest

from aam.errors import InputError
from aam.files.output_folder import (
    LOCK,
    RUN,
    OutputFolder,
    check_output_file,
    check_unlocked,
    lock_folder,
)
from tests.refusals import refusal

MODEL = ("model/manifest.json", "model/*.safetensors")
NAMES = (RUN, "metrics.json", "figures/*.svg", *MODEL, "trials/*/**")


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def listing(folder: Path, names: object = NAMES, command: str = "train") -> None:
    folder.mkdir(exist_ok=True)
    (folder / RUN).write_text(json.dumps({"command": command, "outputs": names}))


def files(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    return sorted(str(path.relative_to(folder)) for path in found)


def again(folder: Path, **more: object) -> OutputFolder:
    return OutputFolder(folder, "train", NAMES, **{"overwrite": True, **more})


def test_listed_files_go_and_the_folders_that_this_leaves_empty(tmp_path):
    run = tmp_path / "run"
    listing(run)
    write(run, "metrics.json", "figures/a.svg", "model/manifest.json", "trials/3/fold-1/x")
    write(run, ".partial~host~1~model/a.safetensors", LOCK, f"{LOCK}-begin")
    (run / "empty").mkdir()
    again(run).begin({"config": {}})
    assert files(run) == [LOCK, f"{LOCK}-begin", RUN]
    assert [path.name for path in run.iterdir() if path.is_dir()] == ["empty"]
    record = {"config": {}, "command": "train", "outputs": list(NAMES)}
    assert json.loads((run / RUN).read_text()) == record


@pytest.mark.parametrize(
    "record",
    [
        *("", "[]", "{}", '{"command": "train"}', '{"command": "train", "outputs": [3]}'),
        *('{"command": "train", "outputs": {"weights.bin": 1}}', '{"command": 3, "outputs": []}'),
        '{"command": "train", "outputs": "abc"}',
    ],
)
def test_a_folder_without_a_list_is_left_alone(tmp_path, record):
    write(tmp_path, "samples.tsv", "thesis.docx", "raw/reads.fastq", *([RUN] if record else []))
    if record:
        (tmp_path / RUN).write_text(record)
    assert "left untouched. Choose another folder or clear it" in refusal(again(tmp_path).begin, {})
    assert "raw/reads.fastq" in files(tmp_path)


def test_a_folder_that_cannot_be_read_is_not_taken_for_empty(tmp_path, monkeypatch):
    def scandir(path: object) -> object:
        if Path(os.fspath(path)).name == "mine":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    listing(tmp_path)
    write(tmp_path, "mine/thesis.docx")
    real = os.scandir
    # As a user sees it: permissions do not hold the administrator.
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        again(tmp_path).check()


@pytest.mark.parametrize(
    "name",
    [
        *("thesis.docx", "raw/reads.fastq", "figures/mine.png", "metrics.json/notes.txt", ".lock2"),
        *("model/notes.txt", "model/manifest.json/x", "explanation/explain.html", "trials/x"),
    ],
)
def test_a_folder_with_other_files_is_refused_and_nothing_is_removed(tmp_path, name):
    listing(tmp_path)
    write(tmp_path, "trials/3/fold-1/x", "figures/a.svg", name)
    before = files(tmp_path)
    folder = again(tmp_path)
    message = f"holds 1 files that `aam train` did not write: {name!r}; move them or choose another"
    assert message in refusal(folder.begin, {})
    with pytest.raises(InputError, match="did not write"), folder.replaced({}) as new:
        write(new, "metrics.json")
    assert files(tmp_path) == before


def test_all_problems_come_in_one_message(tmp_path):
    listing(tmp_path, command="evaluate")
    write(tmp_path, "metrics.json", "model/notes.txt")
    text = refusal(again(tmp_path, inputs=[tmp_path / "metrics.json"]).check)
    assert "holds results of `aam evaluate`" in text
    assert "would delete what is read" in text
    assert "model/notes.txt" in text


@pytest.mark.parametrize("inside", ["model", "model/manifest.json", ".", "link"])
def test_inputs_are_not_removed(tmp_path, inside):
    run = tmp_path / "run"
    listing(run)
    write(run, "model/manifest.json")
    (run / "link").symlink_to(run / "model")
    (tmp_path / "to").symlink_to(run)
    for folder in (run, tmp_path / "to"):
        message = refusal(again(folder, inputs=[run / inside]).check)
        assert "would delete what is read" in message


def test_an_input_around_the_folder_is_no_problem(tmp_path):
    run = tmp_path / "study" / "run"
    run.parent.mkdir()
    listing(run)
    write(run, "metrics.json")
    again(run, inputs=[run.parent, tmp_path / "study" / "run2"]).begin({})
    assert files(run) == [RUN]


def test_a_forged_list_deletes_nothing_outside_and_follows_no_link(tmp_path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    write(outside, "keep.txt", "metrics.json", "trials/1/x")
    forged = ["../outside/keep.txt", str(outside / "keep.txt"), "a/../../outside/*"]
    listing(run, [RUN, *forged, "model/*", "metrics.json"])
    (run / "metrics.json").symlink_to(outside / "metrics.json")
    again(run).begin({})
    assert files(run) == [RUN]
    (run / "model").symlink_to(outside)
    assert "did not write: 'model'" in refusal(again(run).begin, {})
    assert files(outside) == ["keep.txt", "metrics.json", "trials/1/x"]


@pytest.mark.parametrize("name", ["**", "*", "?*", "[a-z]*", "th*", "*/**", "raw/../*", "/**", ""])
def test_a_listed_name_that_begins_with_a_wildcard_does_not_count(tmp_path, name):
    listing(tmp_path, [RUN, "fold-*/metrics.json", name])
    write(tmp_path, "thesis.docx", "raw/reads.fastq", "fold-1/metrics.json", "fold-1/mine.txt")
    message = refusal(again(tmp_path).begin, {})
    assert "holds 3 files" in message
    assert "'fold-1/mine.txt', 'raw/reads.fastq', 'thesis.docx'" in message
    assert len(files(tmp_path)) == 5


def test_a_folder_is_replaced_whole_or_stays(tmp_path):
    run = tmp_path / "run"
    for text in ("1", "2"):
        before = run.stat().st_ino if run.exists() else 0
        with again(run).replaced({}) as new:
            write(new, "figures/a.svg")
            (new / "metrics.json").write_text(text)
        assert (run / "metrics.json").read_text() == text
        assert run.stat().st_ino != before
    assert files(run) == ["figures/a.svg", "metrics.json", RUN]
    with pytest.raises(RuntimeError), again(run).replaced({}) as new:
        raise RuntimeError
    assert (run / "metrics.json").read_text() == "2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_the_folder_in_which_a_user_works_is_not_moved_away(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("1", "2"):
        with again(Path()).replaced({}) as new:
            (new / "metrics.json").write_text(text)
        assert Path().stat().st_ino == tmp_path.stat().st_ino
        assert Path("metrics.json").read_text() == text
    assert files(tmp_path) == ["metrics.json", RUN]
    # The root folder of an image cannot be written.
    expected = "is the root of all folders" if os.access("/", os.W_OK) else "no permission to write"
    assert expected in refusal(again(Path("/")).check)


def test_a_file_replaces_neither_an_input_nor_what_a_run_lists(tmp_path):
    run = tmp_path / "run"
    listing(run)
    write(run, "metrics.json", "mine.json")
    check_output_file(run / "mine.json", overwrite=True)
    assert "is a folder, expected a file" in refusal(check_output_file, run, True)
    listed = refusal(check_output_file, run / "metrics.json", True)
    assert "belongs to the results of `aam train`" in listed
    (tmp_path / "link").symlink_to(run / "mine.json")
    for path in (run / "mine.json", tmp_path / "link"):
        message = refusal(check_output_file, path, True, [tmp_path / "absent", run / "mine.json"])
        assert "is read by the same command" in message


# --- the lock ----------------------------------------------------------------------------------


def test_one_process_at_a_time_and_no_trace_of_a_look(tmp_path):
    check_unlocked(tmp_path)
    assert not list(tmp_path.iterdir())
    with lock_folder(tmp_path):
        for look in (lock_folder(tmp_path).__enter__, lambda: check_unlocked(tmp_path)):
            assert "another process is writing there" in refusal(look)
    with lock_folder(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    check_unlocked(tmp_path)


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise OSError("Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_folder(tmp_path):
        assert "this file system has no locks" in caplog.text


PAGES = ("run.json", "explain.html", "ph/features.tsv")


def test_what_another_command_wrote_about_the_results_goes_with_them(tmp_path):
    listing(tmp_path)
    write(tmp_path, "metrics.json", "explanation/explain.html", "explanation/ph/features.tsv")
    listing(tmp_path / "explanation", PAGES, "explain")
    again(tmp_path).begin({})
    assert files(tmp_path) == [RUN]
    assert not (tmp_path / "explanation").exists()


@pytest.mark.parametrize("command", ["explain", "evaluate"])
def test_files_of_others_next_to_what_goes_with_the_results_stay(tmp_path, command):
    listing(tmp_path)
    write(tmp_path, "metrics.json", "explanation/ph/features.tsv", "explanation/ph/mine.txt")
    listing(tmp_path / "explanation", PAGES, command)
    before = files(tmp_path)
    message = refusal(again(tmp_path).begin, {})
    assert "'explanation/ph/mine.txt'" in message
    assert ("'explanation/ph/features.tsv'" in message) == (command == "evaluate")
    assert files(tmp_path) == before
