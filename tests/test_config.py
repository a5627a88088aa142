"""The options: all of them named here, explained, and the same from a file, of any version, and
from a saved run.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path

import pytest

from aam import config, config_commands
from aam.cli.command_line import parse
from aam.config import (
    DataConfig,
    FineTuneConfig,
    ModelConfig,
    PretrainConfig,
    TargetConfig,
    TrainConfig,
    read_config,
)
from aam.device import options as runtime_options
from aam.engine import options as engine_options
from aam.errors import InputError
from aam.options import from_dict, options_of, read_toml, spelled, to_dict

# A new option is a visible decision: it is added here too.
BOTH = [
    "--asv-chunk-size",
    "--asv-sampling",
    "--attention-heads",
    "--attention-layers",
    "--attn-implementation",
    "--auto-batch-size",
    "--batch-column",
    "--batch-size",
    "--checkpoint-minutes",
    "--compile-model",
    "--count-embedding",
    "--count-embedding-method",
    "--count-penalty",
    "--cv",
    "--data-parallel",
    "--debug",
    "--decimal",
    "--deterministic",
    "--device",
    "--distributed",
    "--dropout",
    "--dry-run",
    "--embedding-dim",
    "--epochs",
    "--fsdp",
    "--gradient-accumulation-steps",
    "--gradient-checkpointing",
    "--group-column",
    "--lr",
    "--max-bp",
    "--max-grad-norm",
    "--max-memory-fraction",
    "--memory-profile",
    "--metadata",
    "--midpoint-root",
    "--missing",
    "--missing-tips",
    "--missing-values",
    "--mixed-precision",
    "--nuc-mask-ratio",
    "--nuc-mask-strategy",
    "--nuc-penalty",
    "--num-workers",
    "--output-dir",
    "--overwrite",
    "--patience",
    "--penalty",
    "--pretrained-encoder",
    "--rarefy-depth",
    "--resume-from",
    "--seed",
    "--sequences",
    "--split",
    "--split-column",
    "--stratify",
    "--test-fold",
    "--test-size",
    "--threads",
    "--token-limit",
    "--track",
    "--trim",
    "--unifrac-matrix",
    "--unifrac-metric",
    "--validation-size",
    "--warmup-steps",
    "--weight-decay",
]
PRETRAIN_ONLY = [
    "--alpha",
    "--asv-dropout",
    "--asv-stem",
    "--count-mask-ratio",
    "--ema-decay",
    "--freeze-asvs",
    "--from-scratch",
    "--nuc-mask-asvs",
    "--patch-size",
    "--root-length",
    "--shallow-draws",
    "--tables",
    "--targets",
    "--targets-penalty",
    "--taxonomy",
    "--trees",
]
TRAIN_ONLY = [
    "--best-metric",
    "--bounded-targets",
    "--categorical-columns",
    "--categorical-embed-dim",
    "--categorical-fusion",
    "--categorical-lr",
    "--class-weights",
    "--classifier",
    "--conditional-output-scaling",
    "--count-prediction",
    "--cross-attn-heads",
    "--freeze-base",
    "--learnable-output-scale",
    "--loss-config",
    "--loss-type",
    "--members",
    "--metadata-column",
    "--numeric-columns",
    "--out-dim",
    "--output-activation",
    "--over-penalty",
    "--perceiver-num-latents",
    "--perceiver-num-layers",
    "--quantiles",
    "--regressor-dropout",
    "--regressor-hidden-dims",
    "--residual-regression-head",
    "--rf-baseline",
    "--study-column",
    "--table",
    "--target-layer-norm",
    "--target-penalty",
    "--target-transform",
    "--tree",
    "--under-penalty",
    "--val-prediction-passes",
]

COMMANDS = [
    value()
    for page in (config, config_commands, engine_options, runtime_options)
    for name, value in vars(page).items()
    if name.endswith("Config")
    and dataclasses.is_dataclass(value)
    and value.__module__ == page.__name__
]


def options(config) -> list[tuple[str, dataclasses.Field, object]]:
    """Name, field and default of every option of a configuration."""
    triples = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        inner = dataclasses.is_dataclass(value)
        triples += (
            options(value) if inner else [("--" + field.name.replace("_", "-"), field, value)]
        )
    return triples


def test_every_option_is_a_decision():
    assert sorted(each.name for each in options_of(PretrainConfig())) == sorted(
        BOTH + PRETRAIN_ONLY
    )
    assert sorted(each.name for each in options_of(FineTuneConfig())) == sorted(BOTH + TRAIN_ONLY)


@pytest.mark.parametrize("config", COMMANDS, ids=lambda config: type(config).__name__)
def test_every_option_is_explained(config):
    assert type(config).__doc__
    names = [name for name, _, _ in options(config)]
    assert len(names) == len(set(names)), "two options of one name"
    for name, field, _ in options(config):
        text = field.metadata["help"]
        assert len(text) > 8, name
        assert text.endswith("."), (name, text)


def test_the_two_trainings_mean_the_same_by_an_option():
    pretrain = {each.name: each.about for each in options_of(PretrainConfig())}
    train = {each.name: each.about for each in options_of(FineTuneConfig())}
    assert all(pretrain[name] == train[name] for name in BOTH)


# --- files -------------------------------------------------------------------------------------


def other(hint, value):
    """A value of the annotated type that is not `value`."""
    if typing.get_origin(hint) is typing.Literal:
        return next(choice for choice in typing.get_args(hint) if choice != value)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return (
            ("pH (1:5)", 'quo"ted', "Ünï")
            if item is str
            else (other(item, value[0] if value else None),)
        )
    if type(None) in typing.get_args(hint):
        return other(next(a for a in typing.get_args(hint) if a is not type(None)), value)
    return {
        bool: lambda: not value,
        int: lambda: (value or 0) + 3,
        float: lambda: (value or 0) / 2 + 0.375,
        str: lambda: "C:\\täxt",
        Path: lambda: Path("some where") / "ta\tble.biom",
    }[hint]()


def everything_changed(config):
    """`config` with no option at its default."""
    hints = typing.get_type_hints(type(config))
    changes = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        inner = dataclasses.is_dataclass(value)
        changes[field.name] = (
            everything_changed(value) if inner else other(hints[field.name], value)
        )
    return dataclasses.replace(config, **changes)


def toml(data: dict) -> str:
    sections = [
        f"[{name}]\n" + toml(value) for name, value in data.items() if isinstance(value, dict)
    ]
    lines = [
        f"{key} = {json.dumps(value)}\n"
        for key, value in data.items()
        if not isinstance(value, dict | None)
    ]
    return "".join(lines + sections)


def without_overwrite(config):
    """The options of a run.json: what a call may replace, a later one may not unless it is asked to
    again.
    """
    if hasattr(config, "runtime"):
        return dataclasses.replace(config, runtime=without_overwrite(config.runtime))
    return dataclasses.replace(config, overwrite=False) if hasattr(config, "overwrite") else config


@pytest.mark.parametrize("config", COMMANDS, ids=lambda config: type(config).__name__)
def test_every_option_survives_a_file(config, tmp_path):
    changed = everything_changed(config)
    assert all(a[2] != b[2] for a, b in zip(options(changed), options(config), strict=True))
    data = to_dict(changed)
    assert from_dict(config, json.loads(json.dumps(data)), "here") == changed
    (tmp_path / "options.toml").write_text(toml(data), encoding="utf-8")
    (tmp_path / "run.json").write_text(
        json.dumps({"config": data, "versions": {}}), encoding="utf-8"
    )
    for name in ("options.toml", "run.json"):
        expected = changed if name == "options.toml" else without_overwrite(changed)
        assert from_dict(config, read_toml(tmp_path / name), name) == expected
        assert from_dict(changed, read_toml(tmp_path / name), name) == changed
    (tmp_path / "bare.json").write_text(json.dumps(to_dict(config)), encoding="utf-8")
    assert from_dict(changed, read_toml(tmp_path / "bare.json"), "bare.json") == config


def test_a_file_may_hold_some_options(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text(
        "\ufeff[train]\nlr = 1\nbatch-size = 16\n[data]\ntable = 't.biom'\n", encoding="utf-8"
    )
    config = read_config(path, FineTuneConfig())
    assert config.train == dataclasses.replace(FineTuneConfig().train, lr=1.0, batch_size=16)
    assert isinstance(config.train.lr, float)
    assert config.data == DataConfig(table=Path("t.biom"))


def test_every_problem_of_a_file_is_told(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(
        "epochs = 3\n[train]\nbatchsize = 3\nlr = 'fast'\nepochs = true\nwarmup_steps = 'none'\n"
        "[data]\ntable = 3\n[targets]\nmetadata_column = 'age'\n[modell]\n[runtime]\nseed = 1.5\n"
    )
    with pytest.raises(InputError) as caught:
        read_config(path, FineTuneConfig())
    message = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 9
    for expected in (
        "unknown key 'epochs'",
        "[train]: unknown key 'batchsize'; did you mean 'batch_size'?",
        "'lr' is 'fast', expected float",
        "'epochs' is True, expected int",
        "'warmup_steps' is 'none', expected int",
        "'table' is 3, expected",
        "'metadata_column' is 'age', expected",
        "unknown key 'modell'; did you mean 'model'?",
        "'seed' is 1.5, expected int",
    ):
        assert expected in message
    with pytest.raises(InputError, match="expected a section"):
        from_dict(FineTuneConfig(), {"train": 3}, "here")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", b"[train", "not valid TOML or JSON"),
        ("a.toml", b"lr = \xff", "not valid TOML or JSON"),
        ("a.json", b"{", "not valid TOML or JSON"),
        ("a.json", b"[" * 100_000, "not valid TOML or JSON"),
        ("a.json", b"[1]", "holds list, expected sections"),
        ("a.json", b'{"config": 3}', "holds int, expected sections"),
        ("a.toml", b"#" * (5 << 20), "larger than 4 MiB, expected a configuration$"),
    ],
)
def test_what_is_no_configuration(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_config(tmp_path / name, FineTuneConfig())
    assert str(caught.value).count(str(tmp_path / name)) == 1


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere.toml"):
        with pytest.raises(InputError, match="cannot be read"):
            read_config(path, FineTuneConfig())


# --- what is derived ---------------------------------------------------------------------------


def test_tokens_of_each_stem():
    assert ModelConfig(asv_stem="nucleotide", patch_size=5).patch == 1
    assert ModelConfig(asv_stem="patch", patch_size=5).patch == 5


def test_defaults_that_users_rely_on():
    data, train = DataConfig(), TrainConfig()
    assert (data.token_limit, data.asv_sampling, data.unifrac_metric) == (
        1024,
        "abundance",
        "unifrac",
    )
    assert (data.test_size, data.validation_size, data.rarefy_depth) == (None, 0.15, None)
    assert (data.missing, data.missing_tips, data.root_length, data.alpha) == (
        "error",
        "error",
        "include",
        0.5,
    )
    assert (train.patience, train.weight_decay, train.nuc_mask_ratio) == (10, 0.01, 0.15)
    assert (train.penalty, train.nuc_penalty, train.count_penalty, train.max_grad_norm) == (
        1.0,
    ) * 4
    assert (ModelConfig().dropout, ModelConfig().max_bp, ModelConfig().positions) == (
        0.0,
        None,
        150,
    )


def test_a_network_is_trained_where_an_option_asks_for_it():
    """Of the default members it is none; what only it can do it does alone."""
    config, learners = FineTuneConfig(), ("presence", "forest")
    assert config.default_members == learners
    for section, name, value in (
        ("train", "pretrained_encoder", Path("pre")),
        ("train", "epochs", 3),
        ("model", "embedding_dim", 32),
        ("targets", "freeze_base", True),
        ("covariates", "categorical_fusion", "add"),
    ):
        asked = dataclasses.replace(
            config, **{section: dataclasses.replace(getattr(config, section), **{name: value})}
        )
        assert asked.network_options == [spelled(name)]
        assert asked.default_members == ("deep", *learners)
    for changed in ({"class_weights": ("balanced",)},):
        assert dataclasses.replace(config, targets=TargetConfig(**changed)).default_members == (
            "deep",
        )
    of_studies = dataclasses.replace(config, data=DataConfig(study_column="study"))
    assert of_studies.default_members == ("presence", "forest")
    others = dataclasses.replace(
        config, data=DataConfig(group_column="child"), targets=TargetConfig(classifier=True)
    )
    assert others.default_members == learners


# --- files of several studies, of options that are no more, of a search ------------------------


def read(path: Path, text: str) -> PretrainConfig:
    path.write_text(text)
    return read_config(path, PretrainConfig())


LISTS = """[data]
tables = ["a.biom", "b.biom"]
trees = ["a.nwk", "none"]
trim = true
[train]
epochs = 3
"""


def test_lists_say_what_the_options_of_several_studies_say(tmp_path):
    config = read(tmp_path / "studies.toml", LISTS)
    words = "--table a.biom b.biom --tree a.nwk none --trim --epochs 3"
    assert config == parse("pretrain", PretrainConfig(), words.split())


def test_a_list_of_one_is_one_table(tmp_path):
    config = read(tmp_path / "one.toml", '[data]\ntables = ["a.biom"]\ntrees = ["a.nwk"]\n')
    data = config.inputs
    assert (data.table, data.tree, data.tables) == (Path("a.biom"), Path("a.nwk"), ())


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
    path.write_text(
        "[train]\nepochs = 3\n[targets]\nlabel_share = 1.0\n[runtime]\npipeline = false\n"
    )
    with caplog.at_level("INFO", "aam"):
        config = read_config(path, FineTuneConfig())
    assert config.train.epochs == 3
    assert "'[targets] label_share', '[runtime] pipeline' not used" in caplog.text
