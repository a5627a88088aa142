"""The public names, frozen: what `import aam` gives, how it is called, and what it does not
import.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import aam
from aam.errors import InputError, import_extra

# A change of these lines is a change of the interface, and stands in the changelog.
SIGNATURES = {
    "Model.place": "(self, table: 'Any', **options: 'Any') -> 'PlacedSamples'",
    "Model.distances": (
        "(self, table: 'Any', metric: 'PlacedMetric' = 'unifrac', **options: 'Any') -> 'Any'"
    ),
    "Model.embed": (
        "(self, table: 'Any', *, asvs: 'bool' = False, **options: 'Any') -> 'pd.DataFrame'"
    ),
    "Model.explain": "(self, table: 'Any', metadata: 'Any' = None, *, "
    "output_dir: 'str | os.PathLike[str] | None' = None, **options: 'Any') -> 'pd.DataFrame'",
    "Model.predict": "(self, table: 'Any', metadata: 'Any' = None, **options: 'Any') -> "
    "'pd.DataFrame'",
    "AmpliconClassifier.explain": "(self, X: 'Any', y: 'Any' = None, groups: 'Any' = None, "
    "covariates: 'Any' = None, "
    "**options: 'Any') -> 'pd.DataFrame'",
    "AmpliconClassifier.fit": "(self, X: 'Any', y: 'Any', groups: 'Any' = None, covariates: "
    "'Any' = None, "
    "tree: 'Any' = None, studies: 'Any' = None, sample_weight: 'Any' = None) -> 'Any'",
    "AmpliconClassifier.predict": "(self, X: 'Any', covariates: 'Any' = None, new_study: 'bool' "
    "= False) -> 'npt.NDArray[Any]'",
    "AmpliconClassifier.predict_proba": "(self, X: 'Any', covariates: 'Any' = None, new_study: "
    "'bool' = False) -> 'Floats'",
    "AmpliconRegressor.predict": (
        "(self, X: 'Any', covariates: 'Any' = None, new_study: 'bool' = False) -> 'Floats'"
    ),
    "AmpliconRegressor.predict_interval": "(self, X: 'Any', covariates: 'Any' = None) -> 'Floats'",
    "AmpliconRegressor.save": "(self, path: 'str | os.PathLike[str]') -> 'None'",
    "AmpliconRegressor.score": "(self, X: 'Any', y: 'Any', covariates: 'Any' = None, "
    "sample_weight: 'Any' = None) -> 'float'",
    "audit": "(table: 'Any', metadata: 'Any', metadata_column: 'str | None' = None, *, "
    "group_column: 'str | None' = None, **options: 'Any') -> 'pd.DataFrame'",
    "check_samples": "(table: 'Any', groups: 'Any' = None, time: 'Any' = None) -> 'SampleCheck'",
    "learning_curve": "(table: 'Any', metadata: 'Any', metadata_column: 'str', *, group_column: "
    "'str | None' = None, **options: 'Any') -> 'pd.DataFrame'",
    "load": "(path: 'Paths', **options: 'Any') -> 'Model'",
    "pretrain": "(table: 'Any', tree: 'Any' = None, *, output_dir: 'str | os.PathLike[str]', "
    "metadata: 'Any' = None, "
    "**options: 'Any') -> 'Model'",
    "read_table": "(source: 'Any') -> 'AmpliconTable'",
    "run": "(command: 'str', **options: 'Any') -> 'int'",
    "unifrac": (
        "(table: 'Any', tree: 'Any', metric: 'Metric' = 'unifrac', **options: 'Any') -> 'Any'"
    ),
}
NAMES = [
    "AmpliconClassifier",
    "AmpliconRegressor",
    "AmpliconTable",
    "InputError",
    "Model",
    "UnlikeTrainingWarning",
    "__version__",
    "audit",
    "check_samples",
    "learning_curve",
    "load",
    "pretrain",
    "read_table",
    "run",
    "unifrac",
]


def test_the_public_names_and_their_signatures_are_these():
    assert sorted(aam.__all__) == NAMES
    assert set(NAMES) <= set(dir(aam))
    for name, signature in SIGNATURES.items():
        value = aam
        for part in name.split("."):
            value = getattr(value, part)
        assert str(inspect.signature(value)) == signature, name
        assert inspect.getdoc(value)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = aam.nothing


def test_type_checkers_see_the_same_names():
    stub = ast.parse((Path(aam.__file__).parent / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == aam._PUBLIC


def test_importing_aam_imports_nothing_large(plain_python):
    source = (
        "import sys, aam; print([n for n in ('torch', 'numpy', 'sklearn', 'pandas', 'pydantic') "
        "if n in sys.modules])"
    )
    assert plain_python(source) == "[]\n"


def test_a_missing_extra_says_in_one_line_how_to_install_it():
    with pytest.raises(InputError) as caught:
        import_extra("no_such_library.part", "wandb", "--track wandb")
    assert caught.value.problems == (
        "--track wandb needs no_such_library, which is not installed: pip install "
        "'attention-all-microbes[wandb]'",
    )
