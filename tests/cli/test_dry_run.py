"""`--dry-run` reads and checks everything, says what would be trained, and writes nothing."""

from __future__ import annotations

import re

import pytest

from aam.cli import main
from aam.files.output_folder import LOCK, lock_folder


@pytest.fixture(scope="module")
def study(simulate_study):
    return simulate_study(samples=40, asvs=60, depth=2000)


def words_of(study, more: str = "") -> list[str]:
    return f"--table {study}/table.biom --rarefy-depth 200 --device cpu --dry-run {more}".split()


def supervised(study, more: str = "") -> list[str]:
    taught = f"--metadata {study}/metadata.tsv --metadata-column ph --group-column subject"
    return words_of(study, f"{taught} {more}")


def of_presence(study, output) -> list[str]:
    """Words of a training without a network, which takes a second."""
    return supervised(study, f"--members presence --output-dir {output}")


def test_train_shows_members_and_every_split_and_writes_nothing(study, tmp_path, capsys):
    output = tmp_path / "run"
    words = supervised(study, f"--cv fold --dropout 0.1 --output-dir {output}")
    assert main(["train", *words]) == 0
    shown = capsys.readouterr()
    assert re.search(r"members: .*presence \(linear model .*forest \(extra trees", shown.err)
    printed = shown.out.splitlines()
    assert len(printed) == 6
    for fold, line in enumerate(printed[:5]):
        assert line.startswith(f"fold {fold} ({fold + 1} of 5): learns from ")
        assert re.search(r"; at most 10 epochs of (1 step|2 steps)$", line)
    of_test = [re.search(r"predicts (\d+) \((\d+)\)", line) for line in printed[:5]]
    assert sum(int(found[1]) for found in of_test) == 40
    assert sum(int(found[2]) for found in of_test) == 8
    assert printed[5] == f"output folder {output}: free; --dry-run has changed nothing"
    assert list(tmp_path.iterdir()) == []


def test_pretrain_shows_its_samples_and_no_members(study, tmp_path, capsys):
    more = f"--tree {study}/tree.nwk --batch-size 8 --output-dir {tmp_path}/pre"
    assert main(["pretrain", *words_of(study, more)]) == 0
    expected = "samples: learns from 34 samples, is validated on 6; at most 40 epochs of 5 steps"
    assert capsys.readouterr().out.splitlines()[0] == expected
    assert list(tmp_path.iterdir()) == []


def test_what_would_happen_to_an_earlier_run_is_said(study, tmp_path, capsys):
    run = tmp_path / "run"
    words = of_presence(study, run)
    assert main(["train", *(word for word in words if word != "--dry-run")]) == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for more, status, expected in (
        ((), 2, "holds results already"),
        (("--overwrite",), 0, "would be replaced"),
        (("--resume-from", "auto"), 0, "the run there is finished"),
        (("--resume-from", "auto", "--seed", "5"), 2, "--seed was 0 and is 5"),
        (("--overwrite", "--memory-profile"), 0, "would be replaced"),
    ):
        capsys.readouterr()
        assert main(["train", *words, *more]) == status, more
        shown = capsys.readouterr()
        assert expected in shown.out + shown.err, more
    (run / "metrics.json").unlink()
    assert main(["train", *words, "--resume-from", "auto"]) == 0
    assert "the run there would continue" in capsys.readouterr().out
    del before[run / "metrics.json"]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_folder_in_use_is_refused(study, tmp_path, refused):
    run = tmp_path / "run"
    run.mkdir()
    with lock_folder(run):
        said = refused(main, ["train", *of_presence(study, run)])
    assert "another process is writing there" in said
    assert [path.name for path in run.iterdir()] == [LOCK]


def test_inputs_are_checked_before_an_output_folder_is_chosen(study, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *supervised(study)]) == 0
    expected = "output folder (--output-dir): not named; --dry-run has changed nothing"
    assert expected in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_small_study_is_cross_validated_unless_asked_otherwise(study, tmp_path, capsys):
    """In five folds of whole groups and by learners alone; not with a network, a share to hold out,
    or few groups.
    """
    taught = f"--metadata {study}/metadata.tsv --metadata-column ph --output-dir {tmp_path}/run"

    def printed(more: str = "") -> str:
        assert main(["train", *words_of(study, f"{taught} {more}")]) == 0
        shown = capsys.readouterr()
        return shown.err + shown.out

    lines = printed()
    assert "members: presence (linear model of presence); forest" in lines
    assert "; --test-size holds out one subset instead" in lines
    tested = re.findall(r"fold \d \(\d of 5\): .* predicts (\d+)", lines)
    assert tested == ["8"] * 5
    for more in ("--test-size 0.2", "--epochs 3", "--group-column subject"):
        assert "fold 0" not in printed(more), more
