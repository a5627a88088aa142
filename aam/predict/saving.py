"""Members as tensors and a description in JSON, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aam.data.targets import Targets
from aam.predict.forest import ForestMember, Trees
from aam.predict.kernel import KernelMember
from aam.predict.members import Member, Members, TargetMembers, specs_in_order
from aam.predict.presence import Vocabulary, as_bytes, as_sequences
from aam.predict.truth import Thresholds

Tensors = dict[str, npt.NDArray[Any]]

SEQUENCES = "sequences"

LINEAR = ("asvs", "kmers", "covariates", "bias")

TREES = ("root", "left", "right", "feature", "threshold", "value")


def to_tensors(members: Members) -> tuple[Tensors, dict[str, Any]]:
    """Return members as arrays by name, and what describes them in JSON."""
    tensors: Tensors = {SEQUENCES: as_bytes(members.vocabulary.sequences)}
    described = []
    for number, fitted in enumerate(members.fitted):
        facts: dict[str, Any] = {}
        for name, member in fitted.members.items():
            place = f"{number}.{name}"
            if isinstance(member, KernelMember):
                tensors |= {f"{place}.{part}": getattr(member, part) for part in LINEAR}
                facts[name] = {"kind": "kernel", "penalty": member.penalty, "range": None}
                if member.base_rates is not None:
                    tensors[f"{place}.base_rates"] = member.base_rates
                if member.thresholds is not None:
                    tensors[f"{place}.thresholds"] = member.thresholds.at
                    facts[name]["range"] = [member.thresholds.low, member.thresholds.high]
            else:
                tensors |= {f"{place}.{part}": getattr(member.trees, part) for part in TREES}
                facts[name] = {"kind": "forest", "classes": member.classes}
        described.append({"members": facts, "weights": fitted.weights, "power": fitted.power})
    vocabulary = {"levels": list(members.vocabulary.levels), "numbers": members.vocabulary.numbers}
    return tensors, {"vocabulary": vocabulary, "targets": described}


def from_tensors(tensors: Tensors, description: dict[str, Any], targets: Targets) -> Members:
    """Return the members of which `to_tensors` made arrays and a description; `targets` are those of the model.

    Raises KeyError, TypeError or ValueError where they do not belong together.
    """

    def member(place: str, facts: dict[str, Any]) -> Member:
        if facts["kind"] == "forest":
            return ForestMember(Trees(*(tensors[f"{place}.{part}"] for part in TREES)), int(facts["classes"]))
        thresholds = None
        if facts["range"] is not None:
            low, high = facts["range"]
            thresholds = Thresholds(tensors[f"{place}.thresholds"], float(low), float(high))
        linear = {part: tensors[f"{place}.{part}"] for part in LINEAR}
        base_rates = tensors.get(f"{place}.base_rates")
        return KernelMember(**linear, penalty=float(facts["penalty"]), thresholds=thresholds, base_rates=base_rates)

    fitted = []
    for number, (_, facts) in enumerate(zip(specs_in_order(targets), description["targets"], strict=True)):
        members = {name: member(f"{number}.{name}", of_member) for name, of_member in facts["members"].items()}
        weights = {name: float(weight) for name, weight in facts["weights"].items()}
        fitted.append(TargetMembers(members, weights, float(facts["power"])))
    letters = np.ascontiguousarray(tensors[SEQUENCES])
    levels = tuple(int(level) for level in description["vocabulary"]["levels"])
    vocabulary = Vocabulary(as_sequences(letters), levels, int(description["vocabulary"]["numbers"]))
    return Members(targets, vocabulary, tuple(fitted))
