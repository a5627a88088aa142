"""Methods of a run in sentences with their references, and its answers to the questions of DOME
(Walsh et al. 2021): data, optimization, model, evaluation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from aam.config import number_of_folds
from aam.evaluate.comparison import full_baselines, tests_corrected_for
from aam.evaluate.conformal import CONFORMAL_LEVEL
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import LEAST_GROUPS, with_limits
from aam.evaluate.metrics import TITLES
from aam.predict.baselines import BOOSTING, FIELD_DEFAULT, NEIGHBOURS
from aam.predict.blend import with_property
from aam.report.charts import Table

# References by the words that cite them.
REFERENCES: dict[str, str] = json.loads(
    (resources.files("aam.report") / "templates" / "references.json").read_text(encoding="utf-8")
)

MEMBER_METHODS = {
    "presence": "ridge regression on the presence of ASVs (Hoerl and Kennard 1970)",
    "forest": "extremely randomized trees on the presence of ASVs (Geurts et al. 2006)",
    "deep": "a transformer over the ASVs of a sample (Vaswani et al. 2017)",
}
RIVALS = {
    FIELD_DEFAULT: "Breiman 2001; Bokulich et al. 2018",
    BOOSTING: "Friedman 2001",
    "extra trees on presence": "Geurts et al. 2006",
    "linear model of presence": "Hoerl and Kennard 1970",
    "linear model of log-ratios": "Hoerl and Kennard 1970",
}
# Citations of the paired tests, by metric.
SWAP_REFERENCE = "Ernst 2004"
TESTS = {"auroc": "Venkatraman and Begg 1996"}
UNIFRAC = {
    "unifrac": "unweighted UniFrac (Lozupone and Knight 2005)",
    "weighted": "weighted UniFrac (Lozupone et al. 2007)",
    "weighted-normalized": "normalized weighted UniFrac (Lozupone et al. 2007)",
    "generalized": "generalized UniFrac (Chen et al. 2012)",
}

# The judged samples, by what they were to the model.
SUBSET_WORDS = {
    "held-out": "held out",
    "validation": "of early stopping",
    "training": "of training",
    "seen-group": "of groups that training has seen",
}

# What no run can know.
AUTHOR = "Not recorded; for the author to answer."


@dataclass(frozen=True, eq=False)
class Description:
    """What a run was, in words: its run.json, its judged targets, and the sizes of its data."""

    record: Mapping[str, Any]
    targets: Sequence[Evaluation]
    data: Mapping[str, object]

    def option(self, section: str, name: str) -> Any:
        """The value of an option in run.json; None where it has none."""
        config = self.record.get("config", {})
        part = config.get(section, config)
        return part.get(name) if isinstance(part, dict) else None

    @property
    def names(self) -> str:
        """The targets."""
        return enumeration([result.names.target for result in self.targets])

    @property
    def members(self) -> list[str]:
        """The members of the blend."""
        return [name for name in self.option("targets", "members") or () if name in MEMBER_METHODS]

    @property
    def samples(self) -> str:
        """The size of the data and its rarefaction; empty where it is not recorded."""
        depth, dropped = self.record.get("depth"), len(self.record.get("dropped_samples") or ())
        if depth is None or "samples" not in self.data:
            return ""
        text = f"{_with_commas(self.data['samples'])} samples"
        text += f" with {_with_commas(self.data['ASVs'])} ASVs" if "ASVs" in self.data else ""
        text += f" were rarefied to {depth:,} reads"
        return f"{text}; {dropped} with fewer were left out." if dropped else f"{text}."

    @property
    def model(self) -> str:
        """The members, their blend and the seed."""
        blend = "the equal mean of " if len(self.members) > 1 else ""
        members = enumeration([MEMBER_METHODS[name] for name in self.members])
        text = f"The predictions are {blend}{members}."
        if with_property(self.members, "has_epochs") and self.option("train", "pretrained_encoder"):
            text += " The transformer was pretrained without labels."
        return text

    @property
    def is_judged_only(self) -> bool:
        """Whether the run judged predictions or models that it did not make."""
        return self.record.get("command") == "evaluate"

    @property
    def split(self) -> str:
        """How samples were held out."""
        study, cv = self.option("data", "study_column"), self.option("data", "cv")
        subsets = {result.subset for result in self.targets}
        if self.is_judged_only:
            judged = enumeration([SUBSET_WORDS[name] for name in sorted(subsets)])
            return f"The judged samples are: {judged}."
        if cv is not None:
            folds = f"{cv}-fold cross-validation"
            if number_of_folds(str(cv)) is None:
                folds = f"cross-validation over the values of {cv}"
            text = f"Each sample was predicted in {folds} by models that did not learn from it"
        elif "held-out" in subsets:
            text = "Samples that took no part in training were held out for the evaluation"
        else:
            text = "No sample was held out from all decisions of training"
        text += f"; whole values of {study} were held out" if study else ""
        return f"{text}{self.groups_in_words}."

    @property
    def groups_in_words(self) -> str:
        """Whether the samples of a group were held out together, if that is recorded."""
        group = self.option("data", "group_column")
        predictions = [r.complete for r in self.targets if r.complete.groups is not None]
        if not group or not predictions:
            return ""
        if any(complete.cross_validated for complete in predictions):
            most_folds = max(
                int(pd.Series(complete.folds).groupby(complete.groups).nunique().max())
                for complete in predictions
            )
            several = f"; samples of one {group} are in several folds"
            return (
                f"; all samples of a {group} were held out together" if most_folds == 1 else several
            )
        drawn = self.option("data", "test_size") is not None
        return f"; all samples of a {group} were held out together" if drawn else ""

    @property
    def units(self) -> str:
        """What is resampled and swapped as a whole."""
        is_grouped = any(result.complete.groups is not None for result in self.targets)
        return "whole groups" if is_grouped else "samples"

    @property
    def comparison(self) -> str:
        """Baselines, tests, and the correction."""
        baselines = [b for r in self.targets for b in full_baselines(r.comparisons)]
        rivals = [baseline for baseline in baselines if not baseline.constant]
        names = list(dict.fromkeys(rival.name for rival in rivals))
        if not names:
            constants = list(dict.fromkeys(baseline.name for baseline in baselines))
            return f"They are compared with {enumeration(constants)}." if constants else ""
        citations = [f"{name} ({RIVALS[name]})" if name in RIVALS else name for name in names]
        if NEIGHBOURS in names:
            metric = UNIFRAC.get(self.option("data", "unifrac_metric") or "unifrac", "UniFrac")
            citations[names.index(NEIGHBOURS)] = f"nearest neighbours on {metric}"
        text = f"On the same samples they are compared with {enumeration(citations)}"
        if not any(math.isfinite(rival.p) for rival in rivals):
            return f"{text}, without tests."
        tests = dict.fromkeys(TESTS.get(result.key, SWAP_REFERENCE) for result in self.targets)
        text += f" by permutation tests that swap the predictions of {self.units} "
        text += f"({enumeration([*tests])})"
        if any(tests_corrected_for(result.comparisons) > 1 for result in self.targets):
            text += ", with p corrected for several baselines (Holm 1979)"
        is_binary = any(result.key == "auroc" for result in self.targets)
        chance = (
            "; chance is tested by permuted labels (Ojala and Garriga 2010)" if is_binary else ""
        )
        return f"{text}{chance}."

    @property
    def intervals(self) -> str:
        """Confidence intervals of metrics, and conformal intervals of predictions."""
        enough = [r for r in self.targets if r.complete.group_count >= LEAST_GROUPS]
        units = self.units.removeprefix("whole ")
        texts = []
        if enough:
            shares = any(result.complete.labels for result in enough)
            exact = "; those of shares are exact (Korn and Graubard 1998)" if shares else ""
            texts.append(
                f"95 % confidence intervals resample {self.units} (Efron and Tibshirani 1993)"
                f"{exact}."
            )
        if any(result.coverage for result in self.targets):
            texts.append(
                f"{100 * CONFORMAL_LEVEL:.0f} % prediction intervals are conformal"
                f"{'' if self.is_judged_only else f' and calibrated on other {units}'}"
                " (Lei et al. 2018)."
            )
        return " ".join(texts)

    @property
    def software(self) -> str:
        """The versions of the code."""
        versions, commit = self.record.get("versions", {}), self.record.get("commit")
        names = ("torch", "scikit-learn", "numpy")
        libraries = [f"{name} {versions[name]}" for name in names if name in versions]
        text = f"aam {versions.get('aam', '')}".strip()
        text += f" (commit {commit})" if commit else ""
        return f"{text} with {enumeration(libraries)}" if libraries else text


def _with_commas(count: object) -> str:
    """A count as text."""
    return f"{count:,}" if isinstance(count, int) else str(count)


def enumeration(items: Sequence[str]) -> str:
    """Items of a list in a sentence."""
    *first, last = items or [""]
    return f"{', '.join(first)} and {last}" if first else last


def methods(run: Description) -> list[str]:
    """Three to six sentences for a paper; none without a judged target or its run.json."""
    if not run.record or not any(len(result.complete.truth) for result in run.targets):
        return []
    verb = "judged predictions of" if run.is_judged_only else "predicted"
    sentences = [f"We {verb} {run.names} with {run.software}. {run.samples}".strip()]
    sentences += [run.model] if run.members else []
    return [text for text in (*sentences, run.split, run.comparison, run.intervals) if text]


def references(text: str) -> list[str]:
    """The references that a text cites, in alphabetical order."""
    return [reference for name, reference in sorted(REFERENCES.items()) if name in text]


def _results(result: Evaluation) -> str:
    """The metrics of a target, with limits."""
    metrics = {**result.metrics, **result.coverage}
    values = [f"{TITLES[name]} {with_limits(metric)}" for name, metric in metrics.items()]
    return f"{result.names.target}: {', '.join(values)}"


def _against(result: Evaluation) -> str:
    """The best baseline of a target, and the verdict."""
    baselines = full_baselines(result.comparisons)
    best = (
        f"best {baselines[0].name}, {with_limits(baselines[0].metrics[result.key])}; "
        if baselines
        else ""
    )
    return f"{result.names.target}: {best}{result.verdict.sentences[0]}"


def _size(result: Evaluation) -> str:
    """The number of judged samples, and of their groups."""
    complete, name = result.complete, result.names.group
    groups = "" if complete.groups is None else f" of {complete.group_count} {name}"
    return f"{len(complete.truth)} {result.subset} samples{groups}"


def _classes(result: Evaluation) -> str:
    """The range of a target, or the number of samples of each of its classes."""
    complete, name = result.complete, result.names.target
    if complete.labels:
        sizes = np.bincount(complete.truth, minlength=len(complete.labels))
        return (
            f"{name}: {', '.join(f'{n} {k}' for k, n in zip(complete.labels, sizes, strict=True))}"
        )
    return f"{name}: {complete.truth.min():g} to {complete.truth.max():g}"


def _output(result: Evaluation) -> str:
    """What the model predicts of a target."""
    return "A probability of each class." if result.complete.labels else "A number."


def dome(run: Description) -> dict[str, dict[str, str]]:
    """Answers to the questions of DOME, by section and question; empty where nothing is judged."""
    if not methods(run):
        return {}
    record, results = run.record, [r for r in run.targets if len(r.complete.truth)]
    inputs = record.get("inputs", {}).values()
    files = [f"{x.get('path')} (SHA-256 {x.get('sha256') or 'not recorded'})" for x in inputs]
    sizes = enumeration([_size(result) for result in results])
    fitting = "Penalties and trees are chosen on training samples only."
    fitting = "That of the models." if run.is_judged_only else fitting
    if with_property(run.members, "has_epochs"):
        fitting += f" The network trains for at most {run.option('train', 'epochs')} epochs."
    return {
        "data": {
            "provenance": f"{'; '.join(files)}. Source: {AUTHOR}",
            "points": f"{'; '.join(map(_classes, results))}. Judged: {sizes}.",
            "splits and redundancy": run.split,
            "availability": AUTHOR,
        },
        "optimization": {
            "algorithm": run.model if run.members else "The models are those of the inputs.",
            "encoding of the data": run.samples or "That of the models.",
            "meta-predictions": "Predictions are inputs."
            if run.is_judged_only
            else "No predictions are inputs.",
            "fitting and regularization": fitting,
            "configuration": "All options are in run.json.",
        },
        "model": {
            "interpretability": "aam explain computes the importance of ASVs and taxa.",
            "output": " ".join(dict.fromkeys(map(_output, results))),
            "execution": f"{record.get('device') or 'CPU or GPU not recorded'}, started "
            f"{record.get('started', 'at a time not recorded')}; the report has the time taken.",
            "software": f"{run.software}, licence BSD-3-Clause.",
        },
        "evaluation": {
            "method": run.split,
            "measures": "; ".join(map(_results, results)),
            "comparison": " ".join([run.comparison, "; ".join(map(_against, results))]).strip(),
            "confidence": run.intervals or "Too few groups for intervals and tests.",
            "availability": "Predictions of all samples are in predictions.tsv.",
        },
    }


def dome_table(run: Description) -> list[Table]:
    """The answers to DOME as a table of a report."""
    rows = [
        (f"{section}: {question}", answer)
        for section, answers in dome(run).items()
        for question, answer in answers.items()
    ]
    title = "Answers to the questions of DOME (Walsh et al. 2021)"
    return [Table(title, pd.DataFrame(rows), "dome")] if rows else []
