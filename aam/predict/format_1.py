"""Models of format 1, which aam 0.1 wrote before 2026-12: their learners beside the network, read from two files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aam.data.targets import Targets
from aam.files.atomic import read_json
from aam.files.tensors import read_arrays
from aam.predict.blend import LEARNERS, Blend, TargetBlend, specs_in_order
from aam.predict.features import Covariates, Kmers, Presence
from aam.predict.forest import Trees
from aam.predict.learner import restore_state

DESCRIPTION, ARRAYS = "members.json", "members.safetensors"

# The names of a linear model's features.
PARTS = {"presence": "asvs", "kmers": "kmers", "covariates": "covariates"}


def read_blend(path: Path, targets: Targets) -> Blend:
    """Return the learners of a model folder, and none where its network predicts alone.

    Raises KeyError, TypeError or ValueError where they do not belong together.
    """
    if not (path / DESCRIPTION).is_file():
        return Blend()
    described: Any = read_json(path / DESCRIPTION)
    arrays = read_arrays(path / ARRAYS)
    presence, covariates = Presence(), Covariates()
    presence.sequences_ = arrays["sequences"]
    covariates.levels_ = [int(level) for level in described["vocabulary"]["levels"]]
    covariates.numbers_ = int(described["vocabulary"]["numbers"])
    fitted = []
    for number, (spec, of_target) in enumerate(zip(specs_in_order(targets), described["targets"], strict=True)):
        learners = {}
        for name, facts in of_target["members"].items():
            learners[name] = LEARNERS[name](len(spec.labels), 0)
            restore_state(learners[name], *_state(f"{number}.{name}", facts, arrays, learners[name].features))
        weights = {name: float(weight) for name, weight in of_target["weights"].items()}
        fitted.append(TargetBlend(learners, weights, float(of_target["power"])))
    return Blend(tuple(fitted), {"presence": presence, "kmers": Kmers(), "covariates": covariates})


def _state(place: str, facts: Any, arrays: Any, features: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a forest or linear model has learned, as `restore_state` takes it."""
    if facts["kind"] == "forest":
        return {f"trees_.{part}": arrays[f"{place}.{part}"] for part in Trees._fields}, {}
    state = {f"coef_.{name}": arrays[f"{place}.{PARTS[name]}"] for name in features}
    state["intercept_"] = arrays[f"{place}.bias"]
    state |= {
        f"{part}_": arrays[f"{place}.{part}"] for part in ("thresholds", "base_rates") if f"{place}.{part}" in arrays
    }
    values = {"alpha_": float(facts["penalty"])}
    return state, values if facts["range"] is None else {**values, "range_": [float(value) for value in facts["range"]]}
