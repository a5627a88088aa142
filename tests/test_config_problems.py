"""Options that contradict each other, are missing, or have no effect: refused together, before any
work.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from aam.config import (
    RESERVED,
    CovariateConfig,
    DataConfig,
    FineTuneConfig,
    ModelConfig,
    PretrainConfig,
    TargetConfig,
    TrainConfig,
)
from aam.config_commands import DoctorConfig, EvaluateConfig, PredictConfig, UnifracConfig
from aam.errors import InputError
from aam.options import check, option_problems
from tests.refusals import refusal


def test_options_that_contradict_each_other():
    config = FineTuneConfig(
        targets=TargetConfig(metadata_column=("age",), freeze_base=True),
        covariates=CovariateConfig(("age", "sex"), ("sex",)),
    )
    problems = option_problems(config)
    for option in (
        "'age', 'sex', 'sex' names a column twice",
        "--metadata-column 'age' is a covariate too",
    ):
        assert any(option in problem for problem in problems), option
    (problem,) = option_problems(
        FineTuneConfig(covariates=CovariateConfig(categorical_fusion="add"))
    )
    assert problem == "--categorical-fusion is add, and no covariate is named"
    assert option_problems(FineTuneConfig()) == []


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (PretrainConfig(), ["--tables", "--output-dir"]),
        (FineTuneConfig(), ["--table", "--metadata", "--metadata-column", "--output-dir"]),
        (UnifracConfig(), ["--table", "--tree", "--output"]),
        (PredictConfig(), ["--model", "--table", "--output"]),
        (EvaluateConfig(), ["--metadata", "--output-dir"]),
    ],
)
def test_every_required_option_is_named_at_once(config, names):
    with pytest.raises(InputError) as caught:
        check(config)
    missing = [
        problem.partition(":")[0] for problem in caught.value.problems if "not given" in problem
    ]
    assert sorted(missing) == sorted(names)


def test_files_to_read_must_exist_also_where_they_would_not_be_read(tmp_path):
    (tmp_path / "table.tsv").write_text("x")
    config = PredictConfig(
        model=(tmp_path,),
        table=tmp_path / "table.tsv",
        output=tmp_path / "p.tsv",
        metadata=tmp_path / "nothere.tsv",
    )
    assert refusal(check, config) == f"--metadata: {tmp_path}/nothere.tsv: no such file or folder"


def test_predictions_are_not_written_with_tabs_under_the_name_of_commas(tmp_path):
    assert "p.csv, which ends in '.csv'; expected .tsv or .txt" in refusal(
        check, PredictConfig(output=tmp_path / "p.csv")
    )
    assert "expected .tsv" not in refusal(check, PredictConfig(output=tmp_path / "p.tsv"))


def test_an_output_that_exists_is_named_with_everything_else(tmp_path):
    (tmp_path / "d.npy").write_text("mine")
    message = refusal(check, UnifracConfig(output=tmp_path / "d.npy", alpha=5.0))
    assert "exists already" in message
    assert "--alpha is 5.0, expected 0 to 1" in message
    assert "--table: not given" in message
    assert "ends in '.doc', expected .tsv, .qza" in refusal(
        check, UnifracConfig(output=tmp_path / "d.doc", unifrac_metric="faith_pd")
    )


def test_options_without_effect_are_refused():
    targets = TargetConfig(metadata_column=("age",))
    usual = FineTuneConfig().train

    def message_of(**train: object) -> str:
        return "\n".join(
            option_problems(
                FineTuneConfig(targets=targets, train=dataclasses.replace(usual, **train))
            )
        )

    assert message_of(warmup_steps=5) == ""
    pretrained = PretrainConfig(train=TrainConfig(count_penalty=2.0))
    assert option_problems(pretrained) == []


def test_pretraining_that_learns_nothing_is_refused():
    masks = TrainConfig(nuc_penalty=0, count_penalty=0)
    for trees, penalty, learns in (
        ((), 1, False),
        (("none",), 1, False),
        ((__file__,), 0, False),
        ((__file__,), 1, True),
    ):
        config = PretrainConfig(
            data=DataConfig(trees=trees), train=dataclasses.replace(masks, penalty=penalty)
        )
        assert (
            any("nothing is learned" in problem for problem in option_problems(config)) != learns
        ), (trees, penalty)


def test_studies_that_cannot_be_told_apart_are_refused():
    table = Path(__file__)
    data = DataConfig(tables=(table, table.parent / "." / table.name))
    message = "\n".join(option_problems(PretrainConfig(data=data)))
    assert f"--tables: '{table.resolve()}' is there twice; name each table once" in message


def test_class_weights_of_numbers_are_refused():
    weighted = TargetConfig(class_weights=("balanced",))
    (problem,) = weighted.class_weight_problems(0)
    assert "--class-weights is balanced, and no column to predict has classes" in problem
    assert weighted.class_weight_problems(1) == TargetConfig().class_weight_problems(0) == []


def test_sizes_that_contradict_the_pretrained_encoder_are_refused():
    pretrained = ModelConfig(embedding_dim=32, attention_heads=2)
    asked = ModelConfig(embedding_dim=64, attention_heads=2, dropout=0.3)
    problems = asked.encoder_problems(pretrained)
    assert [problem.split(" contradicts")[0] for problem in problems] == [
        "--embedding-dim 64",
        "--dropout 0.3",
    ]
    assert "which has 32; leave it out" in problems[0]
    for model in (ModelConfig(), pretrained):
        assert model.encoder_problems(pretrained) == []


def test_splits_that_cannot_be_chosen_together():
    data = DataConfig(cv="1", split_column="fold")
    message = "\n".join(option_problems(PretrainConfig(data=data)))
    for expected in (
        "--cv is 1, expected 2 or more folds",
        "--split-column and --cv all choose the split",
        "--split-column and --test-fold need each other",
        "--metadata: not given, but columns 'fold' are asked for",
    ):
        assert expected in message
    assert "--model and --table, or --predictions" in "\n".join(option_problems(EvaluateConfig()))


def test_a_matrix_and_faith_pd_are_files_of_other_kinds(tmp_path):
    given = {"table": Path(__file__), "tree": Path(__file__)}
    assert option_problems(UnifracConfig(**given, output=tmp_path / "m.h5")) == []
    config = UnifracConfig(**given, output=tmp_path / "m.h5", unifrac_metric="faith_pd")
    assert "m.h5 ends in '.h5', expected .tsv, .qza" in refusal(check, config)


def test_sizes_and_ranges():
    message = refusal(check, DoctorConfig(threads=-1))
    assert "--threads is -1, expected 1 or more" in message


def test_no_target_is_called_as_a_column_of_predictions():
    """`subset` was refused by nobody until the end of training, where two columns would have had
    that name.
    """
    for name in RESERVED:
        problems = option_problems(FineTuneConfig(targets=TargetConfig(metadata_column=(name,))))
        assert any(
            f"--metadata-column: '{name}' cannot be told" in problem for problem in problems
        ), name


@pytest.mark.parametrize("option", ["group_column", "study_column", "split_column", "cv"])
def test_a_target_does_not_divide_the_samples(option):
    targets = TargetConfig(metadata_column=("ph", "site"))
    problems = option_problems(FineTuneConfig(data=DataConfig(**{option: "site"}), targets=targets))
    assert any(
        problem.startswith("--metadata-column 'site' divides the samples too")
        for problem in problems
    )
