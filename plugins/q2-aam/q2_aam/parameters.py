"""Options of the commands as parameters of QIIME 2: their types, ranges, defaults and
descriptions.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any

from decorator import FunctionMaker
from qiime2.plugin import Bool, Choices, Float, Int, Range, Str

from aam.options import Option, bounds_of, options_of

# Names by which users of q2-sample-classifier and of q2-diversity know options.
NAMES = {
    "seed": "random_state",
    "threads": "n_jobs",
    "rarefy_depth": "sampling_depth",
    "lr": "learning_rate",
    "missing": "missing_samples",
}
# Stands for the default of what must be given.
REQUIRED = object()

PRIMITIVES = {int: Int, float: Float, bool: Bool, str: Str}


def _kind(option: Option) -> Any:
    """Return the type of an option without None; the number of one that also takes a word."""
    numbers = [part for part in typing.get_args(option.kind) if part in (int, float)]
    return numbers[0] if numbers else option.kind


def _type(option: Option) -> Any:
    """Return the type of a parameter for an option."""
    kind, bounds = _kind(option), bounds_of(option.annotation)
    if typing.get_origin(kind) is typing.Literal:
        return Str % Choices(*typing.get_args(kind))
    if not bounds:
        return PRIMITIVES[kind]
    return PRIMITIVES[kind] % Range(
        bounds.get("ge", bounds.get("gt")),
        bounds.get("le", bounds.get("lt")),
        inclusive_start="gt" not in bounds,
        inclusive_end="le" in bounds,
    )


def _view(option: Option) -> type:
    """Return the type by which Python sees a parameter."""
    kind = _kind(option)
    view: type = str if typing.get_origin(kind) is typing.Literal else kind
    return view


class Parameters:
    """The parameters of an action: some options of a command, each under the name that QIIME 2's
    users know.
    """

    def __init__(self, default: Any, *options: str) -> None:
        self.option_of = {NAMES.get(name, name): name for name in options}
        by_name = {each.field.name: each for each in options_of(default)}
        # One home for defaults, ranges and descriptions: the option.
        chosen = {name: by_name[option] for name, option in self.option_of.items()}
        self.types = {name: _type(each) for name, each in chosen.items()}
        self.defaults = {name: each.value for name, each in chosen.items()}
        self.descriptions = {name: each.about.help for name, each in chosen.items()}
        self.views = {name: _view(each) for name, each in chosen.items()}

    def options(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options among the arguments of an action."""
        return {option: arguments[name] for name, option in self.option_of.items()}


def action(
    name: str,
    run: Callable[[dict[str, Any]], Any],
    views: Mapping[str, Any],
    parameters: Parameters,
    result: Any,
) -> Callable[..., Any]:
    """Return a function with the signature that QIIME 2 reads, which calls `run` with its arguments
    by name.

    Parameters
    ----------
    name : str
        Of the action.
    run : callable
    views : dict
        View type of each input and metadata parameter; those that may be left out are ``(type,
        None)``.
    parameters : Parameters
    result : type or None
        View type of the output; None for a visualizer.
    """
    items = [
        (each, *(view if isinstance(view, tuple) else (view, REQUIRED)))
        for each, view in views.items()
    ]
    # What must be given comes first.
    items.sort(key=lambda item: item[2] is not REQUIRED)
    items += [(each, parameters.views[each], value) for each, value in parameters.defaults.items()]
    names = [each for each, _, _ in items]
    # A function with real parameters: QIIME 2 takes the first one from visualizers, and looks at
    # nothing else.
    made = FunctionMaker.create(
        f"{name}({', '.join(names)})",
        f"return run(dict({', '.join(f'{each}={each}' for each in names)}))",
        {"run": run},
        defaults=tuple(default for _, _, default in items if default is not REQUIRED),
    )
    made.__annotations__ = {each: view for each, view, _ in items} | {"return": result}
    return made
