"""[[studies]] in a file of options says what lists of tables and trees say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aam.config import FineTuneConfig, PretrainConfig, TuneConfig, read_config
from aam.errors import InputError
from aam.options import to_dict

TEXT = """
[[studies]]
table = "a.biom"
tree = "a.nwk"
name = "gut"
taxonomy = "a.qza"

[[studies]]
table = "b.biom"
name = "soil"

[data]
trim = true

[train]
epochs = 3
"""


def read(path: Path, text: str) -> PretrainConfig:
    path.write_text(text)
    return read_config(path, PretrainConfig())


def test_sections_are_the_lists(tmp_path):
    config = read(tmp_path / "studies.toml", TEXT)
    lists = (
        'tables = ["a.biom", "b.biom"]\ntrees = ["a.nwk", "none"]\nstudy_names = ["gut", "soil"]\ntaxonomy = ["a.qza"]'
    )
    other = read(tmp_path / "lists.toml", f"[data]\n{lists}\ntrim = true\n[train]\nepochs = 3\n")
    assert config == other
    assert config.data.trees == ("a.nwk", "none")
    plain = read(tmp_path / "plain.toml", '[[studies]]\ntable = "a.biom"\n[[studies]]\ntable = "b.biom"\n')
    assert plain.data == replace(PretrainConfig().data, tables=(Path("a.biom"), Path("b.biom")))


def test_one_section_is_one_table(tmp_path):
    config = read(tmp_path / "one.toml", '[[studies]]\ntable = "a.biom"\ntree = "a.nwk"\nname = "gut"\n')
    data = config.training().data
    assert (data.table, data.tree, data.tables, data.study_names) == (Path("a.biom"), Path("a.nwk"), (), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[studies]]\ntabel = "a"\n', "unknown key 'tabel'; expected 'table', 'tree', 'name', 'taxonomy'"),
        ('[[studies]]\ntree = "a"\n', "[[studies]] 1: no 'table'"),
        ("[[studies]]\ntable = 3\n", "[[studies]] 1: 'table' is 3, expected text"),
        ('[[studies]]\ntable = "a"\nname = "x"\n[[studies]]\ntable = "b"\n', "1 of 2 [[studies]] have a name"),
        ('[[studies]]\ntable = "a"\n[data]\ntables = ["b"]\n', "[[studies]] and [data] 'tables': both name files"),
        ('studies = ["a.biom"]\n', "expected a [[studies]] section for each study"),
        ("[studies]\ntable = 3\n", "expected a [[studies]] section for each study"),
        ('[[study]]\ntable = "a"\n', "unknown key 'study'; did you mean [[studies]]?"),
        ('[[studies]]\ntable = ""\n', "[[studies]] 1: 'table' is '', expected text"),
        ('data = 3\n[[studies]]\ntable = "a"\n', "'data' is 3, expected a section"),
        ('[[studies]]\ntable = "a"\n[data]\ntargets = ["x"]\n', "expected a list, of one of 'bray-curtis'"),
    ],
)
def test_every_fault_is_named(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        read(tmp_path / "studies.toml", text)
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_all_faults_come_in_one_message(tmp_path):
    with pytest.raises(InputError) as caught:
        read(tmp_path / "studies.toml", '[[studies]]\nx = 1\n[[studies]]\ntable = "b"\ny = 2\n[train]\nz = 3\n')
    assert len(caught.value.problems) == 4


def test_lists_may_say_what_no_study_says(tmp_path):
    tables = '[[studies]]\ntable = "a.biom"\n[[studies]]\ntable = "b.biom"\n'
    lists = '[data]\ntrees = ["a.nwk", "none"]\nstudy_names = ["gut", "soil"]\ntaxonomy = ["all.qza"]\n'
    data = read(tmp_path / "studies.toml", tables + lists).data
    assert (data.trees, data.study_names, data.taxonomy) == (("a.nwk", "none"), ("gut", "soil"), (Path("all.qza"),))


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
