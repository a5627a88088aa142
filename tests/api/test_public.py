"""The public names, frozen: what `import aam` gives, how it is called, and what it does not
import.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import aam
from aam.errors import InputError, import_extra

USER_SCRIPT = Path(__file__).with_name("user_script.py")

# A change of these lines is a change of the interface, and stands in the changelog.
SIGNATURES = {
    "AmpliconClassifier.explain": "(self, X: 'TableLike', y: 'Values | None' = None, groups: 'Values | None' = None, covariates: 'pd.DataFrame | None' = None, *, output_dir: 'PathLike | None' = None, **options: 'OptionValue') -> 'pd.DataFrame'",
    "AmpliconClassifier.fit": "(self, X: 'TableLike', y: 'Values', groups: 'Values | None' = None, covariates: 'pd.DataFrame | None' = None, tree: 'TreeLike | None' = None, studies: 'Values | None' = None, sample_weight: 'Values | None' = None) -> 'Self'",
    "AmpliconClassifier.predict": "(self, X: 'TableLike', covariates: 'pd.DataFrame | None' = None, new_study: 'bool' = False) -> 'npt.NDArray[np.generic]'",
    "AmpliconClassifier.predict_proba": "(self, X: 'TableLike', covariates: 'pd.DataFrame | None' = None, new_study: 'bool' = False) -> 'Floats'",
    "AmpliconRegressor.predict": "(self, X: 'TableLike', covariates: 'pd.DataFrame | None' = None, new_study: 'bool' = False) -> 'Floats'",
    "AmpliconRegressor.predict_interval": "(self, X: 'TableLike', covariates: 'pd.DataFrame | None' = None) -> 'Floats'",
    "AmpliconRegressor.save": "(self, path: 'PathLike') -> 'None'",
    "AmpliconRegressor.score": "(self, X: 'TableLike', y: 'Values', covariates: 'pd.DataFrame | None' = None, sample_weight: 'Values | None' = None) -> 'float'",
    "Model.distances": "(self, table: 'TableLike', metric: 'PlacedMetric' = 'unifrac', **options: 'OptionValue') -> 'skbio.DistanceMatrix'",
    "Model.embed": "(self, table: 'TableLike', *, asvs: 'bool' = False, **options: 'OptionValue') -> 'pd.DataFrame'",
    "Model.explain": "(self, table: 'TableLike', metadata: 'MetadataLike | None' = None, *, output_dir: 'PathLike | None' = None, **options: 'OptionValue') -> 'pd.DataFrame'",
    "Model.place": "(self, table: 'TableLike', **options: 'OptionValue') -> 'PlacedSamples'",
    "Model.predict": "(self, table: 'TableLike', metadata: 'MetadataLike | None' = None, **options: 'OptionValue') -> 'pd.DataFrame'",
    "Model.prediction_table": "(self, table: 'TableLike', metadata: 'MetadataLike | None' = None, **options: 'OptionValue') -> 'PredictionTable'",
    "audit": "(table: 'TableLike', metadata: 'MetadataLike', metadata_column: 'str | None' = None, *, group_column: 'str | None' = None, **options: 'OptionValue') -> 'pd.DataFrame'",
    "check_samples": "(table: 'TableLike', groups: 'Values | None' = None, time: 'Values | None' = None) -> 'SampleCheck'",
    "learning_curve": "(table: 'TableLike', metadata: 'MetadataLike', metadata_column: 'str', *, group_column: 'str | None' = None, **options: 'OptionValue') -> 'pd.DataFrame'",
    "load": "(path: 'PathLike | Sequence[PathLike]', **options: 'OptionValue') -> 'Model'",
    "pretrain": "(table: 'TableLike', tree: 'TreeLike | None' = None, *, output_dir: 'PathLike', metadata: 'MetadataLike | None' = None, **options: 'OptionValue') -> 'Model'",
    "read_table": "(source: 'TableLike') -> 'AmpliconTable'",
    "run": "(command: 'str', **options: 'OptionValue') -> 'int'",
    "unifrac": "(table: 'TableLike', tree: 'TreeLike', metric: 'Metric' = 'unifrac', **options: 'OptionValue') -> 'skbio.DistanceMatrix | pd.Series'",
}
# Names without a signature above.
OTHERS = {"AmpliconTable", "InputError", "UnlikeTrainingWarning", "__version__"}


def test_the_public_names_and_their_signatures_are_these():
    assert set(aam.__all__) == OTHERS | {name.partition(".")[0] for name in SIGNATURES}
    assert set(aam.__all__) <= set(dir(aam))
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
        import_extra("no_such_library.part", "wandb", "track wandb")
    assert caught.value.problems == (
        "track wandb needs no_such_library, which is not installed: pip install "
        "'attention-all-microbes[wandb]'",
    )


@pytest.mark.sources
def test_mypy_checks_the_script_of_a_user():
    """`nox -s types` does, with the files that pyproject.toml names."""
    text = (USER_SCRIPT.parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert "tests/api/user_script.py" in re.search(r"^\[tool.mypy\]\nfiles = .*$", text, re.M)[0]
