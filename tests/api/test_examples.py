"""The examples in the docstrings of the public names, and the sections of these docstrings."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import aam
from aam.data.simulate import simulate

OTHERS = {"__version__", "InputError", "UnlikeTrainingWarning"}
SLOW = {"learning_curve", "pretrain", "Model.embed"}


def public_objects() -> Iterator[tuple[str, object]]:
    """Every public name, and every public method of the public classes."""
    for name in sorted(set(aam.__all__) - OTHERS):
        value = getattr(aam, name)
        yield name, value
        for method in sorted(vars(value)) if inspect.isclass(value) else ():
            function = getattr(value, method)
            is_ours = getattr(function, "__module__", "").startswith("aam.")
            if inspect.isfunction(function) and is_ours and not method.startswith("_"):
                yield f"{name}.{method}", function


def inherited_methods() -> Iterator[tuple[str, object]]:
    """Methods that both estimators have."""
    from aam.api.estimators import AmpliconEstimator

    for name in ("fit", "save", "explain", "score"):
        yield f"AmpliconEstimator.{name}", getattr(AmpliconEstimator, name)


OBJECTS = dict([*public_objects(), *inherited_methods()])
WITH_EXAMPLES = {name: value for name, value in OBJECTS.items() if ">>>" in inspect.getdoc(value)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small study, as ``python -m aam.data.simulate`` makes it, and a model of it."""
    folder = tmp_path_factory.mktemp("study")
    simulate(folder, samples=60, asvs=80, subjects=20, depth=2_000, seed=3)
    metadata = pd.read_csv(folder / "metadata.tsv", sep="\t", index_col="sample-id")
    model = aam.AmpliconRegressor(rarefy_depth=300, members=["presence"], threads=1)
    model.fit(folder / "table.biom", metadata["ph"]).save(folder / "model")
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in WITH_EXAMPLES]
)
def test_the_examples_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False)
    for test in finder.find(WITH_EXAMPLES[name], name, globs={"aam": aam, "pd": pd}):
        report: list[str] = []
        result = runner.run(test, out=report.append)
        assert result.attempted or "+SKIP" in inspect.getdoc(WITH_EXAMPLES[name])
        assert not result.failed, "".join(report)


@pytest.mark.parametrize("name", [name for name, x in OBJECTS.items() if inspect.isfunction(x)])
def test_docstrings_have_the_sections_of_numpydoc(name: str):
    function, text = OBJECTS[name], inspect.getdoc(OBJECTS[name])
    signature = inspect.signature(function)
    sections = re.findall(r"^(\w+)\n-+$", text, re.MULTILINE)
    expected = ["Returns"] if signature.return_annotation not in ("None", None) else []
    if set(signature.parameters) - {"self"}:
        expected = ["Parameters", *expected, "Raises", "Examples"]
    if not name.startswith("AmpliconTable."):
        assert sections == expected
    for parameter in set(signature.parameters) - {"self"}:
        assert re.search(rf"^[^:\n]*\b{parameter}\b", text, re.MULTILINE), parameter


def test_no_public_signature_has_any():
    for name, value in OBJECTS.items():
        if inspect.isfunction(value):
            assert not re.search(r"\bAny\b", str(inspect.signature(value))), name
