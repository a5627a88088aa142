"""The search: ``python -m examples.tune --trials N`` with the options of `aam train`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aam.cli import main as aam
from aam.errors import BAD_INPUT, FINISHED, InputError, import_extra

# Options of `aam train` with the values that a trial chooses from.
SPACE: dict[str, tuple[Any, ...]] = {
    "--members": ("presence", "forest", "presence forest"),
    "--target-transform": ("none", "zscore", "log-zscore"),
}


def error_of(run: Path) -> float:
    """Sum over the targets of the mean absolute error, or of 1 - AUROC, or of 1 - accuracy."""
    targets = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["targets"]
    total = 0.0
    for target in targets.values():
        metrics = {name: metric["value"] for name, metric in target["metrics"].items()}
        score = metrics.get("auroc", metrics.get("accuracy", 0.0))
        total += metrics.get("mae", 1 - score)
    return total


def search(words: Sequence[str], folder: Path, trials: int) -> dict[str, Any]:
    """Run trials until there are `trials` in the folder; the values of the best."""
    optuna = import_extra("optuna", "tune", "examples.tune")
    folder.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{folder / 'trials.db'}"
    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(
        storage=storage, sampler=sampler, study_name="aam train", load_if_exists=True
    )

    def objective(trial: Any) -> float:
        run = folder / f"trial-{trial.number}"
        chosen = []
        for name, values in SPACE.items():
            chosen += [name, *trial.suggest_categorical(name, values).split()]
        status = aam(["train", *words, "--cv", "3", *chosen, "--output-dir", str(run)])
        if status == BAD_INPUT:
            raise InputError("the options of `aam train` are wrong; see above")
        if status != FINISHED:
            raise optuna.TrialPruned
        return error_of(run)

    done = [trial for trial in study.trials if trial.state.is_finished()]
    study.optimize(objective, n_trials=max(0, trials - len(done)))
    return dict(study.best_params)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the search and print the best options."""
    parser = argparse.ArgumentParser(prog="python -m examples.tune", description=__doc__)
    parser.add_argument("--trials", type=int, default=20, help="number of trials in all")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder of the search")
    own, words = parser.parse_known_args(arguments)
    try:
        best = search(words, own.output_dir, own.trials)
    except InputError as error:
        print(f"examples.tune: {error}", file=sys.stderr)
        return BAD_INPUT
    print("best:", *(f"{name} {value}" for name, value in best.items()))
    return FINISHED


if __name__ == "__main__":
    sys.exit(main())
