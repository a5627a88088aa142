"""Methods and DOME: each statement is what the run did, and only what was used is cited."""

from __future__ import annotations

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import pytest

from aam.api.evaluation import OUTPUTS
from aam.config import DataConfig
from aam.engine.run import RESULTS
from aam.evaluate.comparison import Baseline
from aam.evaluate.evaluation import Names, evaluate_target
from aam.predict.baselines import NEIGHBOURS
from aam.predict.folds import _outputs
from aam.report.files import write_results
from aam.report.methods import REFERENCES, described, references
from aam.report.record import record_of
from tests.evaluate import simulated
from tests.evaluate.simulated import majority, median, two_classes
from tests.report.test_figures import report_html
from tests.report.test_provenance import RECORD
from tests.report.test_report import HOSTILE, Page, data, numeric

CONFIG = {
    "data": {"cv": "4", "group_column": "subject", "unifrac_metric": "weighted"},
    "targets": {"members": ["forest"]},
    "train": {"epochs": 17, "pretrained_encoder": None},
}
RUN = {**RECORD, "config": CONFIG, "depth": 1234, "dropped_samples": {"a": 3, "b": 4}}


# Folds that hold whole groups of four samples, and folds that divide them.
WHOLE, DIVIDED = np.arange(200) // 4 % 4, np.arange(200) % 4


class Description(NamedTuple):
    """A run: its run.json, its judged targets, and the sizes of its data."""

    record: dict
    targets: tuple
    data: dict


def methods(run: Description) -> list[str]:
    return described(run.record, [*map(record_of, run.targets)], run.data)[0]


def dome(run: Description) -> dict[str, dict[str, str]]:
    return described(run.record, [*map(record_of, run.targets)], run.data)[1]


def run_of(record: dict = RUN, *, fold: np.ndarray | None = WHOLE, **config) -> Description:
    given = simulated.numeric(0.4, groups=np.arange(200) // 4, fold=fold)
    draw = np.random.default_rng(3)
    names = (NEIGHBOURS, "gradient boosting")
    rivals = [Baseline(name, given.truth + draw.normal(0, 1, 200), False) for name in names]
    judged = evaluate_target(
        Names("ph", group="subject"), given, [median(given), *rivals], repeats=20
    )
    config = {part: {**CONFIG[part], **config.get(part, {})} for part in CONFIG}
    return Description({**record, "config": config}, (judged,), {"samples": 212, "ASVs": 345})


def test_methods_name_what_was_done_and_cite_nothing_else():
    text = " ".join(methods(run_of()))
    assert 3 <= len(methods(run_of())) <= 6
    for part in ("ph with aam 7.8.9 (commit c0ffee+)", "212 samples with 345 ASVs", "1,234 reads"):
        assert part in text
    assert "2 with fewer were left out" in text
    assert "4-fold cross-validation" in text
    assert "all samples of a subject were held out together" in text
    assert "equal mean" not in text, "one member"
    cited = " ".join(references(text))
    for author in ("Geurts", "Lozupone CA", "Friedman", "Holm", "Ernst", "Efron"):
        assert author in cited, author
    for author in ("Hoerl", "Vaswani", "Lei J", "Chen J", "Ojala", "Breiman", "Walsh"):
        assert author not in cited, author


def test_methods_of_other_runs():
    blend = " ".join(methods(run_of(targets={"members": ["presence", "forest", "deep"]})))
    assert "the equal mean of ridge regression" in blend
    assert "a transformer over the ASVs of a sample (Vaswani et al. 2017)" in blend
    assert "is part of a mean only if it lowers its error on validation samples" in blend
    assert "pretrained" not in blend
    encoder = {"pretrained_encoder": "16s-v4"}
    targets = {"members": ["deep"]}
    assert "was pretrained" in " ".join(methods(run_of(targets=targets, train=encoder)))
    by_study = {"cv": "cohort", "group_column": None, "study_column": "cohort"}
    text = " ".join(methods(run_of(data=by_study)))
    assert "cross-validation over the values of cohort" in text
    assert "held out together" not in text
    one = " ".join(methods(run_of(data={"cv": None}, fold=None)))
    assert "took no part in training" in one
    assert "held out together" not in one, "a split file may divide groups"
    drawn = run_of(data={"cv": None, "test_size": 0.3}, fold=None)
    assert "held out together" in " ".join(methods(drawn))
    assert methods(Description({}, run_of().targets, {})) == []
    assert methods(Description(RUN, (), {})) == []


def test_only_what_is_recorded_is_said_of_groups_and_of_models_of_others():
    divided = " ".join(methods(run_of(data={"cv": "plate"}, fold=DIVIDED)))
    assert "samples of one subject are in several folds" in divided
    assert "held out together" not in divided
    config = {"group_column": "subject", "model": [], "runtime": {}}
    run = run_of()._replace(record={**RECORD, "command": "evaluate", "config": config})
    text = " ".join(methods(run))
    assert text.startswith("We judged predictions of ph")
    assert "The judged samples are: held out." in text
    assert "together" not in text
    answers = dome(run)
    assert answers["optimization"]["fitting and regularization"] == "That of the models."
    assert answers["optimization"]["meta-predictions"] == "Predictions are inputs."
    (judged,) = run.targets
    constants = tuple(rival for rival in judged.comparisons if rival.constant)
    only = replace(judged, comparisons=constants)
    alone = " ".join(methods(run._replace(targets=(only,))))
    assert "They are compared with the training median." in alone


def test_without_groups_samples_are_said_to_be_resampled():
    given = simulated.numeric(0.5)
    rivals = [median(given), Baseline("depth alone", given.predicted[::-1])]
    result = evaluate_target(Names("ph"), given, rivals, repeats=200)
    run = Description(RUN, (result,), {"samples": 12345, "ASVs": 67890})
    text = " ".join(methods(run))
    assert "12,345 samples with 67,890 ASVs" in text
    assert "confidence intervals resample samples (" in text
    assert "swap the predictions of samples (" in text
    assert "groups" not in text
    assert dome(run)["model"]["output"] == "A number."


def test_methods_of_two_classes_cite_their_tests():
    given = replace(two_classes(2.0), groups=np.arange(200) % 50)
    rival = Baseline("depth alone", given.predicted[:, ::-1], trivial=True)
    judged = evaluate_target(Names("case"), given, [majority(given), rival], repeats=20)
    cited = references(" ".join(methods(Description(RUN, (judged,), {}))))
    authors = [reference.split()[0] for reference in cited]
    assert authors == ["Efron", "Geurts", "Korn", "Ojala", "Venkatraman"]


def test_dome_answers_all_sections_of_the_page_and_the_file(tmp_path):
    run = run_of()
    answers = dome(run)
    assert list(answers) == ["data", "optimization", "model", "evaluation"]
    assert all(text for part in answers.values() for text in part.values())
    assert "200 held-out samples of 50 subject" in answers["data"]["points"]
    assert RUN["inputs"]["table"]["sha256"] in answers["data"]["provenance"]
    (tmp_path / "run.json").write_text(json.dumps(run.record))
    write_results(tmp_path, replace(data(*run.targets), data=run.data))
    assert json.loads((tmp_path / "dome.json").read_text()) == answers
    page = Page((tmp_path / "report.html").read_text()).text
    assert methods(run)[0] in page
    assert answers["evaluation"]["measures"] in page


def test_every_file_of_a_report_is_listed_for_overwrite(tmp_path):
    run = run_of()
    (tmp_path / "run.json").write_text(json.dumps(run.record))
    write_results(tmp_path, replace(data(*run.targets), data=run.data))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    names = {path.relative_to(tmp_path).as_posix() for path in files} - {"run.json"}
    assert "dome.json" in names
    for listed in (OUTPUTS, [RESULTS, *_outputs(DataConfig())]):
        assert all(any(fnmatchcase(name, part) for part in listed) for name in names)


def test_html_in_names_stays_text_in_the_methods():
    judged = replace(numeric(), names=Names(HOSTILE, HOSTILE, HOSTILE))
    record = {**RUN, "commit": HOSTILE, "config": {**CONFIG, "data": {"group_column": HOSTILE}}}
    page = report_html(replace(data(judged), record=record))
    assert "<script src" not in page
    assert HOSTILE.replace("\x1b", "") in Page(page).text.replace("\x1b", "")


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_has_the_authors_and_year_that_cite_it(name: str):
    author, year = name.split()[0], name.split()[-1]
    assert REFERENCES[name].startswith(author)
    assert f"({year})" in REFERENCES[name]
