"""`--dry-run` reads and checks everything, says what would be trained, and writes nothing."""

from __future__ import annotations

import pytest

from aam.cli.main import main
from aam.config_commands import SimulateConfig
from aam.data.simulate import simulate


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dry") / "study"
    simulate(SimulateConfig(output_dir=folder, samples=40, asvs=60, length=50, depth=2000))
    return folder


def words_of(study, *more: object) -> list[str]:
    table = ["--table", str(study / "table.biom"), "--rarefy-depth", "200", "--device", "cpu", "--dry-run"]
    return [*table, *map(str, more)]


def supervision(study) -> list[str]:
    return ["--metadata", str(study / "metadata.tsv"), "--metadata-column", "ph", "--group-column", "subject"]


def test_train_shows_members_and_every_split_and_writes_nothing(study, tmp_path, capsys):
    output = tmp_path / "run"
    assert main(["train", *words_of(study, *supervision(study), "--cv", "fold", "--output-dir", output)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "members: deep, presence, kernel, forest"
    assert len(printed) == 7
    for fold, line in enumerate(printed[1:6]):
        assert line.startswith(f"fold {fold}: samples: ")
        assert " test of " in line
        assert line.endswith("at most 10 epochs of 1 steps")
    assert sum(int(line.split(" validation of ")[1].split(", ")[1].split(" test")[0]) for line in printed[1:6]) == 40
    assert list(tmp_path.iterdir()) == []


def test_pretrain_shows_its_samples_and_no_members(study, tmp_path, capsys):
    words = words_of(study, "--tree", study / "tree.nwk", "--batch-size", 8, "--output-dir", tmp_path / "pre")
    assert main(["pretrain", *words]) == 0
    assert (
        capsys.readouterr().out.splitlines()[0]
        == "samples: 34 train, 6 validation, 0 test; at most 40 epochs of 5 steps"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_the_network_no_epochs_are_announced(study, tmp_path, capsys):
    words = words_of(study, *supervision(study), "--members", "presence", "--output-dir", tmp_path / "run")
    assert main(["train", *words]) == 0
    assert "epochs" not in capsys.readouterr().out


def test_what_a_run_would_refuse_is_refused(study, tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "note.txt").write_text("mine")
    assert main(["train", *words_of(study, *supervision(study), "--output-dir", tmp_path / "taken")]) == 2
    assert "holds files, none of them of aam" in capsys.readouterr().err
    wrong = [{"ph": "pH7"}.get(word, word) for word in supervision(study)]
    words = words_of(study, *wrong, "--output-dir", tmp_path / "run")
    assert main(["train", *words]) == 2
    assert "pH7" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["taken", "note.txt"]
