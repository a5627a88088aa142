"""`aam tune`: a search that was killed goes on, sees no test sample, and gives options for
train.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aam.cli.main import main
from aam.commands import tune
from aam.commands.tune import DEFAULT_SPACE, search_space, start_values
from aam.config import FineTuneConfig, read_config
from aam.data.splits import read_split
from aam.errors import InputError
from tests.engine.test_logger import needs

needs_optuna = needs("optuna", "tune")

SPACE = """
[targets]
members = [["presence"], ["forest"], ["presence", "forest"]]
val_prediction_passes = { low = 1, high = 3 }
[train]
lr = { low = 1e-5, high = 1e-2, log = true }
"""
TRIALS, RANDOM_TRIALS = 5, 2
OF_STUDY = (
    "--table {study}/table.biom --metadata {study}/metadata.tsv --metadata-column ph "
    "--rarefy-depth 300"
)
OF_STUDY += " --threads 1 --inner-folds 2"


def options_of(study: Path, output: Path) -> list[str]:
    space = output.parent / "space.toml"
    space.write_text(SPACE)
    words = (
        f"tune {OF_STUDY.format(study=study)} --group-column subject --test-size 0.25 "
        f"--trials {TRIALS}"
    )
    words += " --embedding-dim 16 --attention-layers 1 --attention-heads 2"
    return f"{words} --search-space {space} --output-dir {output}".split()


def trials(folder: Path) -> list[dict[str, str]]:
    """The trials without their seconds."""
    with (folder / "trials.tsv").open() as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def start(words: list[str]) -> subprocess.Popen[str]:
    """Start a search in a process of its own, whose trials learn from earlier ones soon."""
    source = (
        "import sys, aam.commands.tune as tune, aam.cli.main; tune.RANDOM_TRIALS = "
        f"{RANDOM_TRIALS}; "
    )
    source += "sys.exit(aam.cli.main.main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", source, *words], stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def search(study: Path) -> Path:
    """A search that nothing interrupted."""
    folder = study.parent / "search"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "RANDOM_TRIALS", RANDOM_TRIALS)
        assert main(options_of(study, folder)) == 0
    return folder


# --- search space ------------------------------------------------------------------------------


@needs_optuna
def test_the_default_space_holds_the_default_options():
    config = FineTuneConfig()
    assert search_space(config, None) == DEFAULT_SPACE
    usual = config.train
    assert start_values(config, DEFAULT_SPACE) == {
        "train.lr": usual.lr,
        "train.epochs": usual.epochs,
        "model.dropout": config.model.dropout,
    }
    given = dataclasses.replace(config, train=dataclasses.replace(config.train, epochs=3))
    assert "train.epochs" not in search_space(given, None)


@needs_optuna
def test_everything_wrong_with_a_space_is_said(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        "[train]\nlearning = [1, 2]\nlr = { low = 2, high = 1 }\nepochs = [0, 3]\noptimizer = "
        "['adamw', 'adamax']\n"
        "[data]\nrarefy_depth = [1, 2]\n[targets]\nclassifier = [true, "
        "false]\n[model]\nattention_heads = [3, 5]\n"
    )
    with pytest.raises(InputError) as caught:
        search_space(FineTuneConfig(), path)
    text = "\n".join(caught.value.problems)
    for part in (
        "unknown key 'learning'",
        "`low <= high` must hold",
        "--epochs is 0",
        "'adamax'",
        "'data' is no section",
        "'classifier' changes what is compared",
        "--embedding-dim 96 is not divisible by --attention-heads 5",
    ):
        assert part in text, text
    assert len({*caught.value.problems}) == len(caught.value.problems)
    path.write_text("")
    with pytest.raises(InputError, match="names no option; list some, as --dry-run does"):
        search_space(FineTuneConfig(), path)


# --- command -----------------------------------------------------------------------------------


@needs_optuna
def test_a_dry_run_writes_nothing_and_prints_a_space_that_is_read(study, tmp_path, capsys):
    assert main([*options_of(study, tmp_path / "out"), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "printed.toml").write_text(printed)
    config = FineTuneConfig()
    assert search_space(config, tmp_path / "printed.toml") == search_space(
        config, tmp_path / "space.toml"
    )
    assert not (tmp_path / "out").exists()


@needs_optuna
def test_more_inner_folds_than_groups_are_refused_by_their_name(study, tmp_path, capsys):
    assert main([*options_of(study, tmp_path / "out"), "--inner-folds", "99"]) == 2
    assert "--inner-folds is 99, expected 2 to" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_library_is_said_before_anything_is_written(
    study, tmp_path, refused, monkeypatch
):
    monkeypatch.setitem(sys.modules, "optuna", None)
    message = refused(main, options_of(study, tmp_path / "out"))
    assert (
        "aam tune needs optuna, which is not installed: pip install 'attention-all-microbes[tune]'"
        in message
    )
    assert not (tmp_path / "out").exists()


@needs_optuna
@pytest.mark.slow
def test_the_best_options_train_on_the_split_of_the_search(study, search, tmp_path):
    rows = trials(search)
    assert [row["trial"] for row in rows] == [str(place + 1) for place in range(TRIALS)]
    best = min(
        (row for row in rows if row["state"] == "complete"),
        key=lambda row: float(row["relative-error"]),
    )
    config = read_config(search / "best.toml", FineTuneConfig())
    assert str(list(config.targets.members)).replace("'", '"') == best["targets.members"]
    assert config.train.lr == float(best["train.lr"])
    assert (
        main(
            ["train", "--config", str(search / "best.toml"), "--output-dir", str(tmp_path / "run")]
        )
        == 0
    )
    assert (tmp_path / "run" / "split.tsv").read_bytes() == (search / "split.tsv").read_bytes()
    with (search / "importance.tsv").open() as file:
        shares = {
            row["option"]: float(row["importance"])
            for row in csv.DictReader(file, dialect="excel-tab")
        }
    assert shares.keys() == {"targets.members", "targets.val_prediction_passes", "train.lr"}
    assert sum(shares.values()) == pytest.approx(1)
    assert not list((search / "trials").glob("*"))
    # The same command is refused without --resume-from, and a search of other options with it.
    assert main(options_of(study, search)) == 2
    assert main([*options_of(study, search), "--resume-from", "auto", "--seed", "1"]) == 2
    assert trials(search) == rows


@needs_optuna
@pytest.mark.slow
def test_no_trial_sees_the_test_samples(study, search, tmp_path, monkeypatch):
    tested = set(read_split(search / "split.tsv").ids("test"))
    assert len(tested) > 10
    with (study / "metadata.tsv").open() as file:
        header, *rows = list(csv.reader(file, dialect="excel-tab"))
    column = header.index("ph")
    for row in rows:
        row[column] = "100000" if row[0] in tested else row[column]
    changed = tmp_path / "study"
    changed.mkdir()
    (changed / "table.biom").symlink_to(study / "table.biom")
    (changed / "metadata.tsv").write_text("".join("\t".join(row) + "\n" for row in [header, *rows]))
    monkeypatch.setattr(tune, "RANDOM_TRIALS", RANDOM_TRIALS)
    assert main(options_of(changed, tmp_path / "out")) == 0
    assert read_split(tmp_path / "out" / "split.tsv").ids("test") == read_split(
        search / "split.tsv"
    ).ids("test")
    assert trials(tmp_path / "out") == trials(search)


@needs_optuna
@pytest.mark.slow
def test_a_search_that_was_killed_goes_on(study, search, tmp_path):
    words = [*options_of(study, tmp_path / "out"), "--resume-from", "auto"]
    killed = start(words)
    # The fourth trial has begun.
    while not (tmp_path / "out" / "trials" / "3").exists():
        assert killed.poll() is None, killed.stderr
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "out" / "best.toml").exists()
    resumed = start(words)
    _, message = resumed.communicate()
    assert resumed.returncode == 0, message
    assert "trial 4 was interrupted; its options are tried again" in message
    assert re.findall(r"trial (\d+ of \d+) (?:complete|pruned)", message) == ["5 of 6", "6 of 6"]
    rows, uninterrupted = trials(tmp_path / "out"), trials(search)
    assert [row.pop("trial") for row in rows] == ["1", "2", "3", "5", "6"]
    assert rows[:4] == [
        {name: value for name, value in row.items() if name != "trial"} for row in uninterrupted[:4]
    ]
    assert not list((tmp_path / "out" / "trials").glob("*"))
    assert (tmp_path / "out" / "best.toml").exists()


@needs_optuna
@pytest.mark.slow
def test_a_search_whose_trials_are_lost_starts_as_it_was_asked_and_damage_is_named(
    study, tmp_path, capsys, refused
):
    folder = tmp_path / "out"
    words = (
        f"{OF_STUDY.format(study=study)} --trials 2 --search-space {tmp_path}/space.toml "
        "--resume-from auto"
    )
    (tmp_path / "space.toml").write_text('[targets]\nmembers = [["forest"], ["presence"]]\n')
    # Neither is what is used as these options stand.
    assert main(["tune", *words.split(), "--output-dir", str(tmp_path / "other")]) == 0
    assert "with the options as given" not in capsys.readouterr().err
    search = ["tune", *words.split(), "--output-dir", str(folder), "--members", "presence"]
    assert main(search) == 0
    assert "with the options as given" in capsys.readouterr().err
    before, split = trials(folder), (folder / "split.tsv").read_bytes()
    assert before[0]["targets.members"] == '["presence"]'
    (folder / "trials.db").unlink()
    (folder / "split.tsv").unlink()
    assert main(search) == 0
    assert (trials(folder), (folder / "split.tsv").read_bytes()) == (before, split)
    (folder / "trials.db").write_bytes((folder / "trials.db").read_bytes()[:3000])
    assert "trials.db is damaged" in refused(main, search)
    assert trials(folder) == before


@needs_optuna
@pytest.mark.slow
def test_a_trial_worse_than_the_median_is_ended_early(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tune, "RANDOM_TRIALS", RANDOM_TRIALS)
    found = {}
    for name, more in (("pruned", []), ("free", ["--no-prune"])):
        words = options_of(study, tmp_path / name)
        (tmp_path / "space.toml").write_text(
            '[targets]\nmembers = [["presence"], ["forest"], ["presence", "forest"]]\n'
        )
        assert main([*words, *more]) == 0
        found[name] = trials(tmp_path / name), capsys.readouterr().err
    (pruned, message), (free, _) = found.values()
    assert {row["state"] for row in free} == {"complete"}
    states = [row["state"] for row in pruned]
    ended = states.index("pruned")
    assert pruned[:ended] == free[:ended], "until then both searches are the same"
    early, full = pruned[ended], free[ended]
    assert early["targets.members"] == full["targets.members"]
    assert f"trial {ended + 1} of {TRIALS} pruned" in message
    assert early["relative-error"] != full["relative-error"], (
        "it is that of the one part that was predicted"
    )
    before = sorted(float(row["relative-error"]) for row in free[:ended])
    assert float(full["relative-error"]) > before[len(before) // 2], "nothing good was thrown away"
    best = [
        min(float(row["relative-error"]) for row in rows if row["state"] == "complete")
        for rows in (pruned, free)
    ]
    assert best[0] == best[1]


@needs_optuna
@pytest.mark.slow
def test_processes_share_a_search(study, tmp_path):
    words = [*options_of(study, tmp_path / "out"), "--resume-from", "auto"]
    workers = [start(words) for _ in range(2)]
    messages = [worker.communicate()[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], messages
    rows = trials(tmp_path / "out")
    # Two may begin the last trial at once.
    assert len(rows) in (TRIALS, TRIALS + 1)
    assert len({row["trial"] for row in rows}) == len(rows)
