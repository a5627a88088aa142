"""The commands: their names, their options, the functions that run them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command: the name of its configuration, ``module:name`` of its function in `package`, and its help.

    Both are imported when the command is called; the configuration stands in config.py or config_commands.py.
    """

    config: str
    function: str
    help: str
    package: str = "aam"

    def default(self) -> Any:
        """Return the configuration without any option given."""
        for page in ("config", "config_commands"):
            module = importlib.import_module(f"{self.package}.{page}")
            if hasattr(module, self.config):
                break
        return getattr(module, self.config)()

    def load(self) -> Callable[[Any], Any]:
        """Return the function that runs a configuration."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"{self.package}.{module}"), name)  # type: ignore[no-any-return]


class Bundled(NamedTuple):
    """A command that is a program of its own: its file, its help, and files of first words that are others."""

    path: str
    help: str
    others: Mapping[str, str] = {}


class Program(NamedTuple):
    """A program: its name, its commands, their other names, those that save their state at a signal, and programs."""

    name: str
    commands: Mapping[str, Command]
    aliases: Mapping[str, str] = {}
    resumable: tuple[str, ...] = ()
    bundled: Mapping[str, Bundled] = {}


COMMANDS = {
    "simulate": Command(
        "SimulateConfig", "commands.simulate:simulate_study", "write a synthetic study with known signal"
    ),
    "unifrac": Command("UnifracConfig", "api.unifrac:write_unifrac", "UniFrac matrix or Faith PD of a table"),
    "pretrain": Command("PretrainConfig", "api.training:run", "pretrain an encoder on a table and a tree"),
    "train": Command("FineTuneConfig", "api.training:run", "learn to predict metadata columns, and report how well"),
    "tune": Command("TuneConfig", "commands.tune:tune", "search for the options that predict best"),
    "predict": Command("PredictConfig", "api.apply:predict_table", "predict new samples"),
    "embed": Command("EmbedConfig", "commands.embed:embed_table", "vectors of samples and ASVs"),
    "search": Command("NearestConfig", "api.embedding:search", "the nearest samples of a collection"),
    "explain": Command(
        "ExplainConfig", "api.explanation:explain_model", "which ASVs, taxa and clades drive predictions"
    ),
    "evaluate": Command("EvaluateConfig", "commands.evaluate:evaluate_table", "compare predictions with the truth"),
    "baselines": Command(
        "RfBaselineConfig", "commands.baselines:rf_baseline", "forests, nearest neighbours and trivial baselines"
    ),
    "export": Command("ExportConfig", "commands.export:export_model", "a model as ONNX or as a torch program"),
    "report": Command("ReportConfig", "commands.report:report_runs", "show several runs side by side on one page"),
    "models": Command(
        "ModelsConfig", "commands.models:list_models", "the encoders that come with aam, and their cards"
    ),
    "compare": Command("CompareConfig", "commands.compare:compare", "how two runs, machines or benchmarks differ"),
    "doctor": Command("DoctorConfig", "commands.doctor:doctor", "check this machine, and say what mends it"),
    "profile": Command("ProfileConfig", "commands.profile:profile", "where the time of a step goes; what fits"),
    "bench": Command("BenchConfig", "commands.bench:bench", "measure speed and memory on this device"),
}

# Other names of commands, which scripts use.
COMMAND_ALIASES = {"rf-baseline": "baselines"}

# They have options of their own, and run where nothing but Python is installed.
BUNDLED = {
    "slurm": Bundled("slurm/generate", "write and submit job scripts for a SLURM cluster"),
    "image": Bundled("containers/build", "build, check and enter container images", {"run": "containers/run"}),
}

AAM = Program("aam", COMMANDS, COMMAND_ALIASES, ("pretrain", "train", "tune"), BUNDLED)
