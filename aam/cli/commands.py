"""The commands: their names, their options, the functions that run them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command: the name of its configuration, ``module:name`` of its function in `aam`, and its help.

    Both are imported when the command is called.
    """

    config: str
    function: str
    help: str

    def default(self) -> Any:
        """Return the configuration without any option given."""
        from aam import config, config_commands

        page = config if hasattr(config, self.config) else config_commands
        return getattr(page, self.config)()

    def load(self) -> Callable[[Any], Any]:
        """Return the function that runs a configuration."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"aam.{module}"), name)  # type: ignore[no-any-return]


COMMANDS = {
    "simulate": Command("SimulateConfig", "data.simulate:simulate", "write a synthetic study with known signal"),
    "unifrac": Command("UnifracConfig", "commands.unifrac:write_unifrac", "UniFrac matrix or Faith PD of a table"),
    "pretrain": Command("PretrainConfig", "commands.train:pretrain", "pretrain an encoder on a table and a tree"),
    "train": Command("FineTuneConfig", "commands.train:train", "fine-tune on metadata columns"),
    "predict": Command("PredictConfig", "commands.predict:predict_table", "predict new samples"),
    "embed": Command("EmbedConfig", "commands.embed:embed_table", "vectors of samples and ASVs"),
    "evaluate": Command("EvaluateConfig", "commands.evaluate:evaluate_table", "compare predictions with the truth"),
    "baselines": Command(
        "RfBaselineConfig", "commands.baselines:rf_baseline", "forests, nearest neighbours and trivial baselines"
    ),
    "compare": Command("CompareConfig", "commands.compare:compare", "how two runs, machines or benchmarks differ"),
    "doctor": Command("DoctorConfig", "commands.doctor:doctor", "check this machine, and say what mends it"),
    "profile": Command("ProfileConfig", "commands.profile:profile", "where the time of a step goes; what fits"),
    "bench": Command("BenchConfig", "commands.bench:bench", "measure speed and memory on this device"),
}

# Other names of commands, which scripts use.
COMMAND_ALIASES = {"rf-baseline": "baselines"}

# Commands that save their state at a signal, to be called again.
RESUMABLE = ("pretrain", "train")
