"""The options: all of them named here, and read from the command line, a file or a saved run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aam.cli import COMMANDS, main, parse
from aam.config import (
    RESERVED,
    DataConfig,
    ExportConfig,
    FineTuneConfig,
    ModelConfig,
    PredictConfig,
    PretrainConfig,
    TargetConfig,
    TrainConfig,
    UnifracConfig,
)
from aam.options import (
    RunConfig,
    _removed,
    check,
    configured,
    option_problems,
    options_of,
    read_config,
    spelled,
    to_dict,
)
from tests.refusals import refusal

# A new option is a visible decision: it is added to this file too.
OPTIONS = Path(__file__).with_name("options.txt").read_text(encoding="utf-8").splitlines()

DEFAULTS = {name: command.default() for name, command in COMMANDS.items()}


def test_every_option_is_a_decision():
    named = {each.name for default in DEFAULTS.values() for each in options_of(default)}
    assert sorted(named) == OPTIONS


@pytest.mark.parametrize("command", DEFAULTS)
def test_every_option_is_explained_and_help_fits_two_screens(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    default = DEFAULTS[command]
    with pytest.raises(SystemExit) as stopped:
        parse(f"aam {command}", default, ["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 125
    names = [each.name for each in options_of(default)]
    assert len(names) == len(set(names)), "two options of one name"
    for each in options_of(default):
        assert each.name in text
        assert each.about.help.endswith("."), each.name
        assert " ".join(each.about.help.split()[:3]) in text, each.name


REMOVED = [(kind, name) for kind in ("commands", "options") for name in _removed()[kind]]


@pytest.mark.parametrize(("kind", "name"), REMOVED, ids=[name for _, name in REMOVED])
def test_a_removed_name_says_what_to_use_instead(kind, name, refused):
    sentence = _removed()[kind][name]
    assert sentence.endswith(".")
    if kind == "commands":
        assert refused(main, [name, "--help"]) == f"aam: {name} was removed: {sentence}\n"
        return
    taking = [command for command, default in DEFAULTS.items() if name in taken(default)]
    assert not taking, "an option that exists"
    assert f"{name} was removed: {sentence}" in refused(main, ["train", name, "1"])
    said = refusal(configured, FineTuneConfig(), {"train": {name[2:]: 1}}, "file")
    assert f"{name[2:].replace('-', '_')} was removed: {sentence}" in said


def taken(default) -> set[str]:
    return {each.name for each in options_of(default)}


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", DEFAULTS)
def test_options_survive_a_run_json(command, tmp_path):
    default = DEFAULTS[command]
    (tmp_path / "run.json").write_text(json.dumps({"config": to_dict(default)}), encoding="utf-8")
    assert read_config(tmp_path / "run.json", default) == default


def test_a_rerun_of_a_run_json_does_not_overwrite_unasked(tmp_path):
    path = tmp_path / "run.json"
    for usual in (FineTuneConfig(runtime=RunConfig(overwrite=True)), ExportConfig(overwrite=True)):
        path.write_text(json.dumps({"config": to_dict(usual)}))
        for more, expected in ([], False), (["--overwrite"], True):
            read = parse("aam", type(usual)(), ["--config", str(path), *more])
            assert getattr(read, "runtime", read).overwrite is expected


def test_a_file_may_hold_some_options(tmp_path):
    path = tmp_path / "some.toml"
    text = "\ufeff[train]\nlr = 1\nbatch-size = 16\n[data]\ntable = 't.biom'\n"
    path.write_text(text, encoding="utf-8")
    config = read_config(path, FineTuneConfig())
    assert config.train == replace(FineTuneConfig().train, lr=1.0, batch_size=16)
    assert isinstance(config.train.lr, float)
    assert config.data == DataConfig(table=Path("t.biom"))


def test_every_problem_of_a_file_is_told(tmp_path):
    path = tmp_path / "bad.toml"
    path.with_name("ok.toml").write_text("epochs = 3\n")
    path.write_text(
        "epochs = 3\n[train]\nbatchsize = 3\nlr = 'fast'\nepochs = true\npatience = -1\n"
        "[data]\ntable = 3\n[targets]\nmetadata_column = true\n[modell]\n[runtime]\nseed = 1.5\n"
    )
    message = refusal(read_config, path, FineTuneConfig())
    assert len(message.splitlines()) == 8
    for expected in (
        f"{path}, [train]: unknown option 'batchsize'; did you mean 'batch_size'?",
        "[train]: 'lr' is 'fast': Input should be a valid number",
        "'epochs' is True: Input should be a valid integer",
        "'patience' is -1, expected 0 or more",
        "'table' is 3: Input should be a valid string",
        "'metadata_column' is True: Input should be a valid array",
        f"{path}: unknown option 'modell'",
        "'seed' is 1.5: Input should be a valid integer",
    ):
        assert expected in message
    assert read_config(path.with_name("ok.toml"), FineTuneConfig()).train.epochs == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", b"[train", "not valid TOML or JSON"),
        ("a.toml", b"lr = \xff", "not valid TOML or JSON"),
        ("a.json", b"{", "not valid TOML or JSON"),
        ("a.json", b"[" * 100_000, "not valid TOML or JSON"),
        ("a.json", b"[1]", "holds list, expected sections"),
        ("a.json", b'{"config": 3}', "holds int, expected sections"),
        ("a.json", b'{"cv": {"\\ud800": 1}}', "'cv' is .*: Invalid JSON"),
        ("a.json", b'{"cv": %s}' % (b"[" * 500 + b"]" * 500), "'cv' is .*: Invalid JSON"),
        ("a.toml", b"#" * (5 << 20), "at most 4194304 are read; --config takes TOML or run.json$"),
    ],
)
def test_what_is_no_configuration(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    said = refusal(read_config, tmp_path / name, FineTuneConfig())
    assert re.search(message, said)
    assert said.count(str(tmp_path / name)) == 1
    assert "cannot be read" in refusal(read_config, tmp_path, FineTuneConfig())
    assert "no such file" in refusal(read_config, tmp_path / "nowhere.toml", FineTuneConfig())


def test_a_file_with_options_that_the_command_does_not_take_is_refused(tmp_path):
    path = tmp_path / "run.json"
    pretrained = PretrainConfig(data=DataConfig(tables=(Path("a"), Path("b"))))
    path.write_text(json.dumps({"config": to_dict(pretrained)}))
    assert parse("pretrain", PretrainConfig(), ["--config", str(path)]) == pretrained
    assert refusal(parse, "train", FineTuneConfig(), ["--config", str(path)]) == (
        f"{path}: [data] tables is ['a', 'b'], and this command has no such option; leave it out"
    )


def test_a_file_may_name_one_table_or_one_tree_of_a_pretraining(tmp_path):
    path = tmp_path / "o.toml"
    for text, more in (
        ("tree = 't.nwk'", ["--table", "a.biom"]),
        ("table = 'a.biom'\ntrees = ['t.nwk']", []),
    ):
        path.write_text(f"[data]\n{text}\n")
        data = parse("pretrain", PretrainConfig(), ["--config", str(path), *more]).data
        assert (data.tables, data.trees) == ((Path("a.biom"),), ("t.nwk",))


# --- command line ------------------------------------------------------------------------------


def test_words_of_every_kind():
    words = "--table a.biom --metadata-column age site --lr 1e-2 --trim --rarefy-depth 500 "
    words += "--unifrac-metric weighted --device cuda:1 --loss-type=mae --batch_size 3 "
    words += "--no-gradient-checkpointing --test-fold=007"
    parsed = parse("train", FineTuneConfig(), [*words.split(), "--cv=--odd name"])
    assert isinstance(parsed, FineTuneConfig)
    assert (parsed.data.table, parsed.targets.metadata_column) == (Path("a.biom"), ("age", "site"))
    assert (parsed.train.lr, parsed.targets.loss_type, parsed.train.batch_size) == (0.01, "mae", 3)
    assert (parsed.data.trim, parsed.data.rarefy_depth) == (True, 500)
    assert (parsed.data.unifrac_metric, parsed.runtime.device) == ("weighted", "cuda:1")
    assert parsed.runtime.gradient_checkpointing is False
    assert (parsed.data.test_fold, parsed.data.cv) == ("007", "--odd name")
    for default in DEFAULTS.values():
        assert parse("aam", default, []) == default


def test_paths_from_python_may_have_names_that_are_not_utf_8():
    path = Path(os.fsdecode(b"\xff.tsv"))
    assert configured(PredictConfig(), {"metadata": path, "model": (path,)}, "").model == (path,)
    assert configured(PredictConfig(), {"metadata": path}, "aam.run").metadata == path
    resumed = configured(FineTuneConfig(), {"resume_from": Path("state")}, "aam.run")
    assert resumed.runtime.resume_from == "state"


@pytest.mark.parametrize("spelling", [["--config", "FILE"], ["--config=FILE"]])
def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(tmp_path, spelling):
    path = tmp_path / "o.toml"
    path.write_text("[train]\nlr = 0.5\nepochs = 7\n[targets]\nmetadata_column = ['age', 'ph']\n")
    config = [word.replace("FILE", str(path)) for word in spelling]
    for words in (["--lr", "0.25", *config], ["--config", "other", *config, "--lr", "0.25"]):
        parsed = parse("train", FineTuneConfig(), words)
        assert (parsed.train.lr, parsed.train.epochs) == (0.25, 7)
        assert parsed.targets.metadata_column == ("age", "ph")
        assert parsed.train.batch_size == FineTuneConfig().train.batch_size
    parsed = parse("train", FineTuneConfig(), [*config, "--metadata-column", "x"])
    assert parsed.targets.metadata_column == ("x",)
    words = ["--metadata-column", "x", "z", "--metadata-column", "y"]
    twice = parse("train", FineTuneConfig(), words)
    assert twice.targets.metadata_column == ("y",)


BAD_WORDS = [
    ("--lr fast", "--lr is fast: Input should be a valid number"),
    ("--lr nan", "--lr is nan: Input should be a finite number"),
    ("--loss-type l3", "--loss-type is l3: Input should be 'huber', 'mse' or 'mae'"),
    ("--batch-size 0", "--batch-size is 0: Input should be greater than or equal to 1"),
    ("--epochs", "--epochs: expected one argument"),
    ("stray", "stray: unexpected"),
    ("--lr 0.1 0.2", "0.2: unexpected; --help lists the options, and which take several values"),
    ("--no-such-option 3", "unknown option '--no-such-option'; --help lists"),
    ("--embeding-dim 3", "unknown option '--embeding-dim'; did you mean '--embedding-dim'?"),
    ("--no-gradient-checkpointin", "did you mean '--no-gradient-checkpointing'?"),
    ("--confg x", "did you mean '--config'?"),
    ("--hepl", "did you mean '--help'?"),
    ("--alpha=1", "unknown option '--alpha'"),
    ("--config", "--config: expected one argument"),
    ("--config nowhere/aam.toml", "no such file"),
    ("--members --trim", "--members: expected at least one argument"),
]


@pytest.mark.parametrize(("words", "message"), BAD_WORDS)
def test_bad_words(words, message):
    assert message in refusal(parse, "train", FineTuneConfig(), words.split())


def test_everything_that_is_wrong_is_named_at_once(tmp_path, refused):
    names = {"table": "a.biom", "metadata": "b.tsv", "tree": "c.nwk", "split": "d.tsv"}
    words = [word for name, path in names.items() for word in (f"--{name}", path)]
    words += ["--metadata-column", "ph", "--epochs", "0", "--output-dir", str(tmp_path / "run")]
    stderr = refused(main, ["train", *words])
    for name, path in names.items():
        assert f"--{name}: {path}: no such file or folder" in stderr
    assert "--epochs is 0, expected 1 or more" in stderr
    assert not (tmp_path / "run").exists()


# --- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("pretrain", "--output-dir --table"),
        ("train", "--metadata --metadata-column --output-dir --table"),
        ("unifrac", "--output --table --tree"),
        ("predict", "--model --output --table"),
        ("evaluate", "--metadata --output-dir"),
    ],
)
def test_every_required_option_is_named_at_once(command, names):
    problems = refusal(check, DEFAULTS[command]).splitlines()
    asked = [problem.partition(":")[0] for problem in problems if "not given, and" in problem]
    assert sorted(asked) == names.split()


DIVIDING = ("group-column", "study-column", "split-column", "cv")
RULES = [
    ("train", "", None),
    ("pretrain", f"--table {__file__} --tree {__file__}", None),
    ("train", "--metadata-column ph", None),
    *(("train", f"--metadata-column {name}", f"{name!r} is also a column of") for name in RESERVED),
    *(
        ("train", f"--metadata-column ph x --{by} x", "'x' also divides the samples")
        for by in DIVIDING
    ),
    ("train", "--metadata-column age --numeric-columns age", "column 'age' is a covariate too"),
    ("train", "--members presence presence", "each member at most once"),
    ("train", "--categorical-columns a b --numeric-columns b", "'a', 'b', 'b' repeats a column"),
    ("train", "--categorical-fusion add", "--categorical-fusion is add, and no covariate is named"),
    ("train", "--embedding-dim 10", "10 is not divisible by --attention-h"),
    ("train", "--cv 1", "--cv is 1, expected 2 or more folds"),
    ("train", "--cv 01", "--cv is 01, expected 2 or more folds"),
    # Digits that `str.isdigit` takes and `int` does not, or takes as a number.
    *(("train", f"--cv {name}", f"columns '{name}' are asked") for name in ("²", "٣", "1²")),
    ("train", f"--cv {'9' * 5000}", "are asked for"),
    ("train", "--cv 3 --split-column f", "--split-column and --cv all"),
    ("train", "--test-fold f", "--test-fold: names a value of --split-column"),
    ("train", "--cv fold", "--metadata: not given, but columns 'fold'"),
    ("pretrain", "--nuc-penalty 0 --count-penalty 0", "without a tree or distances: nothing is le"),
    ("pretrain", f"--table {__file__} {__file__}", "is given twice; name each table once"),
    ("evaluate", "", "give --model and --table, or --predictions"),
    ("unifrac", "--output d.doc --unifrac-metric faith_pd", "'.doc', expected .tsv"),
    ("predict", "--output p.csv", "ends in '.csv', expected .tsv, .txt"),
]


@pytest.mark.parametrize(("command", "words", "message"), RULES, ids=range(len(RULES)))
def test_rules_between_options(command, words, message):
    problems = option_problems(parse(command, DEFAULTS[command], words.split()))
    assert problems == [] if message is None else any(message in each for each in problems)


def test_an_output_that_exists_is_named(tmp_path):
    (tmp_path / "d.tsv").write_text("mine")
    message = refusal(check, UnifracConfig(output=tmp_path / "d.tsv"))
    assert "exists already" in message
    assert "--table: not given" in message


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("class_weights", ("balanced",), "classes"),
        ("target_transform", "none", "numbers"),
        ("loss_type", "mse", "numbers"),
    ],
)
def test_options_without_an_effect_are_refused(name, value, kind):
    columns, config = {"numbers": 2, "classes": 2}, TargetConfig(**{name: value})
    assert config.kind_problems(*columns.values()) == TargetConfig().kind_problems(0, 0) == []
    (problem,) = config.kind_problems(*(columns | {kind: 0}).values())
    assert f"--{name.replace('_', '-')}: no column to predict has {kind}; leave it out" in problem


def test_sizes_that_contradict_the_pretrained_encoder_are_refused():
    pretrained = ModelConfig(embedding_dim=32, attention_heads=2)
    asked = ModelConfig(embedding_dim=64, attention_heads=2, dropout=0.3)
    problems = asked.encoder_problems(pretrained)
    asked = [problem.split(" contradicts")[0] for problem in problems]
    assert asked == ["--embedding-dim 64", "--dropout 0.3"]
    assert "which has 32; leave it out" in problems[0]
    for model in (ModelConfig(), pretrained):
        assert model.encoder_problems(pretrained) == []


def test_a_network_is_trained_where_an_option_asks_for_it():
    config, learners = FineTuneConfig(), ("presence", "forest")
    assert config.default_members == learners
    for section, name, value in (
        ("train", "pretrained_encoder", Path("pre")),
        ("train", "epochs", 3),
        ("model", "embedding_dim", 32),
        ("targets", "freeze_base", True),
        ("covariates", "categorical_fusion", "add"),
    ):
        changed = replace(getattr(config, section), **{name: value})
        asked = replace(config, **{section: changed})
        assert asked.network_options == [spelled(name)]
        assert asked.default_members == ("deep", *learners)
    weighted = FineTuneConfig(targets=TargetConfig(class_weights=("balanced",)))
    assert weighted.default_members == learners


def test_configurations_are_frozen_and_refuse_unknown_names_and_wrong_values():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig().dropout = 0.5
    for options in ({"epoch": 3}, {"epochs": 0}, {"lr": "fast"}, {"lr": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(options))):
            TrainConfig(**options)


AS_WORDS = [
    ("model", "run", (Path("run"),)),
    ("model", Path("run"), (Path("run"),)),
    ("metadata_column", "month", ("month",)),
    ("metadata_column", ["month"], ("month",)),
    ("members", "forest", ("forest",)),
    ("cv", 5, "5"),
    ("test_fold", np.int64(7), "7"),
    ("missing_values", [-9, 99.0, "ND"], ("-9", "99", "ND")),
    ("class_weights", (0.5, 2), ("0.5", "2")),
]


@pytest.mark.parametrize(("name", "value", "expected"), AS_WORDS)
def test_values_of_python_stand_for_the_words_of_the_command_line(name, value, expected):
    default = COMMANDS["explain"].default() if name == "model" else FineTuneConfig()
    config = configured(default, {name: value}, "x")
    assert next(each.value for each in options_of(config) if each.field.name == name) == expected


@pytest.mark.parametrize("options", [{"cv": True}, {"cv": float("nan")}, {"members": 3}])
def test_values_without_a_word_are_refused(options):
    (name,) = options
    assert f"x: {name!r} is" in refusal(configured, FineTuneConfig(), options, "x")
