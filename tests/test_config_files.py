"""What a file of options says of several studies, of options that are no more, and of a search."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aam.cli.command_line import parse
from aam.config import FineTuneConfig, PretrainConfig, TuneConfig, read_config
from aam.errors import InputError
from aam.options import to_dict


def read(path: Path, text: str) -> PretrainConfig:
    path.write_text(text)
    return read_config(path, PretrainConfig())


LISTS = """[data]
tables = ["a.biom", "b.biom"]
trees = ["a.nwk", "none"]
study_names = ["gut", "soil"]
taxonomy = ["all.qza"]
trim = true
[train]
epochs = 3
"""


def test_lists_say_what_the_options_of_several_studies_say(tmp_path):
    config = read(tmp_path / "studies.toml", LISTS)
    words = "--table a.biom b.biom --tree a.nwk none --study-names gut soil --taxonomy all.qza --trim --epochs 3"
    assert config == parse("pretrain", PretrainConfig(), words.split())


def test_a_list_of_one_is_one_table(tmp_path):
    config = read(tmp_path / "one.toml", '[data]\ntables = ["a.biom"]\ntrees = ["a.nwk"]\nstudy_names = ["gut"]\n')
    data = config.training().data
    assert (data.table, data.tree, data.tables, data.study_names) == (Path("a.biom"), Path("a.nwk"), (), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[studies]]\ntable = "a"\n', "unknown key 'studies'"),
        ("[data]\ntables = 3\n", "'tables' is 3, expected a list, of Path each"),
        ("[data]\ntabels = []\n", "unknown key 'tabels'; did you mean 'tables'?"),
        ("data = 3\n", "'data' is 3, expected a section"),
        ('[data]\ntargets = ["x"]\n', "expected a list, of one of 'bray-curtis'"),
    ],
)
def test_every_fault_is_named(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        read(tmp_path / "studies.toml", text + "\n[train]\nz = 3\n")
    assert any(message in problem for problem in caught.value.problems), caught.value.problems
    assert len(caught.value.problems) == 2


def test_options_that_no_command_has_any_more_are_left_out_and_named(tmp_path, caplog):
    """A run.json of an earlier version is read by this one."""
    path = tmp_path / "old.toml"
    path.write_text("[train]\nepochs = 3\n[targets]\nlabel_share = 1.0\n[runtime]\npipeline = false\n")
    with caplog.at_level("INFO", "aam"):
        config = read_config(path, FineTuneConfig())
    assert config.train.epochs == 3
    assert "'[targets] label_share', '[runtime] pipeline' not used" in caplog.text


def test_training_takes_the_record_of_a_search(tmp_path, caplog):
    caplog.set_level("INFO", logger="aam")
    options = to_dict(replace(TuneConfig(), train=replace(TuneConfig().train, epochs=7)))
    (tmp_path / "run.json").write_text(json.dumps({"command": "tune", "config": options}))
    assert read_config(tmp_path / "run.json", FineTuneConfig()).train.epochs == 7
    assert f"those that it found are in best.toml beside it: --config {tmp_path / 'best.toml'}" in caplog.text
