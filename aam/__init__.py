"""Attention All Microbes: transformers for amplicon tables that run right everywhere.

The public names are those of ``__all__``; each is imported when it is first used, so that ``import
aam`` is instant.
"""

import importlib

# The module of each public name. `__init__.pyi` tells type checkers the same; a test compares the
# two.
_PUBLIC = {
    "AmpliconClassifier": "aam.api.estimators",
    "AmpliconRegressor": "aam.api.estimators",
    "AmpliconTable": "aam.io.tables",
    "InputError": "aam.errors",
    "Model": "aam.api.models",
    "UnlikeTrainingWarning": "aam.errors",
    "audit": "aam.api.audit",
    "check_samples": "aam.api.samples",
    "learning_curve": "aam.api.learning_curve",
    "load": "aam.api.models",
    "pretrain": "aam.api.training",
    "read_table": "aam.data.inputs",
    "run": "aam.cli",
    "unifrac": "aam.api.unifrac",
}

__all__ = [*_PUBLIC, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'aam' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# The Makefile takes the last word of this file for the version.
__version__ = "0.3.0"
