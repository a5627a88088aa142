"""The commands: each has its options in config.py and a function, which Python can call too."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from aam.errors import FINISHED, InputError


class Command(NamedTuple):
    """A command: its configuration in config.py, ``module:name`` of its function, and its help.

    Both are imported from `package` when the command is called.
    """

    config: str
    function: str
    help: str
    package: str = "aam"

    def default(self) -> Any:
        """The configuration without any option given."""
        return getattr(importlib.import_module(f"{self.package}.config"), self.config)()

    def load(self) -> Callable[[Any], Any]:
        """The function that runs a configuration."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"{self.package}.{module}"), name)  # type: ignore[no-any-return]


COMMANDS = {
    "audit": Command("AuditConfig", "api.audit:audit_study", "what gives a target away"),
    "pretrain": Command("PretrainConfig", "api.pretraining:run", "pretrain an encoder"),
    "train": Command("FineTuneConfig", "api.training:run", "learn to predict metadata columns"),
    "predict": Command("PredictConfig", "api.apply:predict_table", "predict new samples"),
    "evaluate": Command("EvaluateConfig", "api.evaluation:evaluate_table", "judge predictions"),
    "explain": Command("ExplainConfig", "api.explanation:explain_model", "ASVs that matter"),
    "embed": Command("EmbedConfig", "api.embedding:embed_table", "vectors of samples and ASVs"),
    "unifrac": Command("UnifracConfig", "api.unifrac:write_unifrac", "UniFrac or Faith PD"),
    "export": Command("ExportConfig", "api.export:export_model", "a model for other programs"),
    "doctor": Command("DoctorConfig", "api.doctor:doctor", "check this machine"),
    "profile": Command("ProfileConfig", "api.profile:profile", "time and memory of a step"),
}


def run(command: str, **options: Any) -> int:
    """Run a command with its options by keyword, as ``aam COMMAND`` does.

    Inputs and outputs are files. `Model`, the estimators, `pretrain`, `unifrac`, `audit` and
    `learning_curve` take and return objects of Python.

    Parameters
    ----------
    command : str
        Such as ``train`` or ``evaluate``.
    **options
        Those of the command, with ``_`` for ``-``; a list where several values may be given.

    Returns
    -------
    int
        0, or the exit status of the command.

    Raises
    ------
    InputError
        Another command, or wrong options or inputs, with every problem.
    """
    from aam.api.pretraining import interrupts_as_in_python
    from aam.options import check, configured

    if command not in COMMANDS:
        raise InputError(f"aam.run: command is {command!r}, expected one of {', '.join(COMMANDS)}")
    config = configured(COMMANDS[command].default(), options, f"aam.run({command!r})")
    check(config)
    with interrupts_as_in_python():
        status = COMMANDS[command].load()(config)
    return status if isinstance(status, int) else FINISHED
