"""The command line generated from the page of options: what is parsed, what is shown, what wins."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from aam.cli.command_line import _take_config, parse
from aam.cli.main import main
from aam.config import DataConfig, FineTuneConfig, PretrainConfig
from aam.config_commands import EmbedConfig, ExportConfig, UnifracConfig
from aam.engine.options import RunConfig
from aam.errors import InputError
from aam.options import options_of, to_dict
from tests.refusals import refusal

OPTION = re.compile(r"^[^\w\n-]{1,4}(--[a-z][a-z0-9-]*)", re.MULTILINE)


def shown(capsys, command: str, default, word: str) -> tuple[str, list[str]]:
    """What is printed for help and the options in it."""
    with pytest.raises(SystemExit) as stopped:
        parse(f"aam {command}", default, [word])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    return text, OPTION.findall(text)


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")


@pytest.mark.parametrize(
    ("command", "default"), [("train", FineTuneConfig()), ("pretrain", PretrainConfig())]
)
def test_help_shows_the_usual_options_and_help_all_every_one(capsys, command, default):
    every = {each.name: each.about for each in options_of(default)}
    rare = {name for name, about in every.items() if about.rare}
    text, options = shown(capsys, command, default, "--help")
    assert set(options) == every.keys() - rare
    assert len(options) == len(set(options)) <= 45
    assert rare >= {"--weight-decay", "--threads"}
    assert "--help-all" in text
    assert f"usage: aam {command}" in text
    assert "--config" in text
    # What Python says of the function that builds a section is nothing for users.
    assert "dataclass" not in text
    assert shown(capsys, command, default, "-h") == (text, options)
    text, options = shown(capsys, command, default, "--help-all")
    assert set(options) == every.keys()
    words = " ".join(re.sub("[│─╭╮╰╯]", " ", text).split())
    for name, about in every.items():
        assert " ".join(about.help.split()[:4]) in words, name


def test_without_words_the_defaults_hold():
    for command, default in (("train", FineTuneConfig()), ("unifrac", UnifracConfig())):
        assert parse(command, default, []) == default


def test_words_of_every_kind():
    words = (
        "--table a.biom --metadata-column age site --lr 1e-2 --no-freeze-base --trim "
        "--rarefy-depth 500"
    )
    words += " --unifrac-metric weighted --device cuda:1 --loss-type=mae --batch_size 3"
    parsed = parse("train", FineTuneConfig(), words.split())
    assert isinstance(parsed, FineTuneConfig)
    assert parsed.data.table == Path("a.biom")
    assert parsed.targets.metadata_column == ("age", "site")
    assert (parsed.train.lr, parsed.targets.loss_type, parsed.train.batch_size) == (0.01, "mae", 3)
    assert parsed.targets.freeze_base is False
    assert (parsed.data.trim, parsed.data.rarefy_depth, parsed.data.unifrac_metric) == (
        True,
        500,
        "weighted",
    )
    assert parsed.runtime.device == "cuda:1"
    names = ["007", "--odd name", "a=b"]
    assert (
        parse("train", FineTuneConfig(), ["--test-fold=007", f"--cv={names[1]}"]).data.cv
        == "--odd name"
    )


@pytest.mark.parametrize("spelling", [["--config", "FILE"], ["--config=FILE"]])
def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(tmp_path, spelling):
    path = tmp_path / "o.toml"
    path.write_text(
        "[train]\nlr = 0.5\nepochs = 7\npatience = 3\n[targets]\nmetadata_column = ['age', 'ph']\n"
    )
    config = [word.replace("FILE", str(path)) for word in spelling]
    for words in (["--lr", "0.25", *config], [*config, "--lr", "0.25"]):
        parsed = parse("train", FineTuneConfig(), words)
        assert (parsed.train.lr, parsed.train.epochs, parsed.train.patience) == (0.25, 7, 3)
        assert parsed.targets.metadata_column == ("age", "ph")
        assert parsed.train.batch_size == FineTuneConfig().train.batch_size
    assert parse(
        "train", FineTuneConfig(), [*config, "--metadata-column", "x"]
    ).targets.metadata_column == ("x",)


def test_bad_words(tmp_path, capsys):
    for words in (["--lr", "fast"], ["--loss-type", "adamax"], ["--epochs"], ["stray"]):
        with pytest.raises(SystemExit) as stopped:
            parse("train", FineTuneConfig(), words)
        assert stopped.value.code == 2, words
        assert words[0].lstrip("-") in capsys.readouterr().err.replace("_", "-")
    assert "--no-such-option: unknown option" in refusal(
        parse, "train", FineTuneConfig(), ["--no-such-option", "3"]
    )
    with pytest.raises(InputError, match="--pipeline: no option any more: --data-parallel"):
        parse("train", FineTuneConfig(), ["--pipeline"])
    with pytest.raises(
        InputError, match=r"--alpha: this command has no such option, and takes 0\.5; leave it out"
    ):
        parse("train", FineTuneConfig(), ["--alpha=1"])
    with pytest.raises(InputError, match="--metadata-column: unknown option"):
        parse("pretrain", PretrainConfig(), ["--metadata-column", "age"])
    assert "--config: no file follows it" in refusal(parse, "train", FineTuneConfig(), ["--config"])
    assert "cannot be read" in refusal(
        parse, "train", FineTuneConfig(), ["--config", str(tmp_path / "nowhere.toml")]
    )
    (tmp_path / "o.toml").write_text("[train]\nepoch = 3\n")
    assert "did you mean 'epochs'" in refusal(
        parse, "train", FineTuneConfig(), ["--config", str(tmp_path / "o.toml")]
    )


def test_a_list_without_values_is_refused_unless_it_takes_away_those_of_a_file(tmp_path):
    with pytest.raises(SystemExit) as stop:
        parse("pretrain", PretrainConfig(), ["--targets", "--help"])
    assert stop.value.code == 0
    for words in (["--targets"], ["--targets", "--trim"]):
        assert "--targets: no value follows it" in refusal(
            parse, "pretrain", PretrainConfig(), words
        )
    (tmp_path / "o.toml").write_text("[data]\ntargets = ['jaccard']\n")
    parsed = parse(
        "pretrain", PretrainConfig(), ["--config", str(tmp_path / "o.toml"), "--targets"]
    )
    assert parsed.data.targets == ()


def test_a_file_with_options_that_the_command_does_not_take_is_refused(tmp_path):
    path = tmp_path / "run.json"
    pretrained = PretrainConfig(
        data=DataConfig(tables=(Path("a"), Path("b")), targets=("jaccard",))
    )
    path.write_text(json.dumps({"config": to_dict(pretrained)}))
    assert parse("pretrain", PretrainConfig(), ["--config", str(path)]) == pretrained
    with pytest.raises(InputError) as caught:
        parse("train", FineTuneConfig(), ["--config", str(path)])
    assert [problem.split(": ", 1)[1] for problem in caught.value.problems] == [
        "[data] tables is 'a', 'b', and this command has no such option; leave it out"
    ]


def test_the_run_json_of_another_command_is_named_as_such(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(
        json.dumps({"command": "embed", "config": to_dict(EmbedConfig(model=(Path("m"),)))})
    )
    with pytest.raises(
        InputError, match=r"written by `aam embed`, .* pass the run\.json of `aam train`"
    ) as caught:
        parse("aam train", FineTuneConfig(), ["--config", str(path)])
    assert len(caught.value.problems) == 1


def test_a_rerun_of_a_run_json_does_not_overwrite_unasked(tmp_path):
    path = tmp_path / "run.json"
    for usual in (FineTuneConfig(runtime=RunConfig(overwrite=True)), ExportConfig(overwrite=True)):
        path.write_text(json.dumps({"config": to_dict(usual)}))
        read = parse("aam", type(usual)(), ["--config", str(path)])
        assert not getattr(read, "runtime", read).overwrite
        read = parse("aam", type(usual)(), ["--config", str(path), "--overwrite"])
        assert getattr(read, "runtime", read).overwrite


def test_a_file_may_name_one_table_or_one_tree_of_a_pretraining(tmp_path):
    path, asked = tmp_path / "o.toml", ["--config", str(tmp_path / "o.toml")]
    path.write_text("[data]\ntree = 't.nwk'\n")
    parsed = parse("pretrain", PretrainConfig(), [*asked, "--table", "a.biom"])
    assert (parsed.data.tables, parsed.data.trees) == ((Path("a.biom"),), ("t.nwk",))
    path.write_text("[data]\ntable = 'a.biom'\ntrees = ['t.nwk']\n")
    parsed = parse("pretrain", PretrainConfig(), asked)
    assert (parsed.data.tables, parsed.data.trees) == ((Path("a.biom"),), ("t.nwk",))
    path.write_text("[data]\ntable = 'a.biom'\ntree = 't.nwk'\ntrees = ['u.nwk']\n")
    assert "[data] tree is t.nwk" in refusal(parse, "pretrain", PretrainConfig(), asked)


def test_every_input_that_is_not_there_is_named_at_once(tmp_path, refused):
    names = {
        "table": "a.biom",
        "metadata": "b.tsv",
        "tree": "c.nwk",
        "split": "d.tsv",
        "pretrained-encoder": "e",
    }
    words = [word for name, path in names.items() for word in (f"--{name}", path)]
    words += ["--metadata-column", "ph", "--epochs", "0", "--output-dir", str(tmp_path / "run")]
    stderr = refused(main, ["train", *words])
    for name, path in names.items():
        assert f"--{name}: {path}: no such file or folder" in stderr
    assert "--epochs is 0" in stderr
    assert not (tmp_path / "run").exists()


def test_of_two_files_of_options_the_last_counts():
    assert _take_config(["--config", "a", "--lr", "1", "--config=b"]) == (["--lr", "1"], Path("b"))
