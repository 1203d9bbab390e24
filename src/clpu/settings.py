"""Settings: frozen dataclasses that are at once configuration, check and help text."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from clpu.errors import BadSetting

S = TypeVar("S")

#: The method of an agent for which none is named.
DEFAULT_METHOD = "clpu-live"

#: The largest integer that a setting may have.
MAX_INTEGER = 2**53


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    choices: Sequence[str] | None = None,
    auto: bool = False,
) -> Any:
    """A dataclass field with a help text and a range; with `auto`, "auto" lets clpu choose the value."""
    limits = {"at_least": at_least, "at_most": at_most, "above": above, "choices": choices}
    return dataclasses.field(default=default, metadata={"help": help, "auto": auto, **limits})


@dataclass(frozen=True)
class Training:
    """Settings of every method that trains. A value "auto" follows from a task's data by the rule in `clpu.auto`."""

    epochs: int = setting("auto", "passes over a task's data", at_least=1, auto=True)
    batch_size: int = setting("auto", "maximum batch size", at_least=1, auto=True)
    optimizer: str = setting("sgd", "the optimiser", choices=("sgd", "momentum", "adam", "adamw"))
    lr: float = setting("auto", "learning rate", above=0, auto=True)
    weight_decay: float = setting("auto", "weight decay", at_least=0, auto=True)
    class_weight: str = setting(
        "none", "balanced: every class is seen equally often in training", choices=("none", "balanced")
    )
    augment: str = setting("none", "augmentation of images in training", choices=("none", "crop-flip"))


def setting_fields(*classes: type) -> dict[str, dataclasses.Field[Any]]:
    """All settings of some settings classes, by name."""
    return {f.name: f for cls in classes for f in dataclasses.fields(cls)}


def make(cls: type[S], values: Mapping[str, Any], auto: Mapping[str, Callable[[], Any]] | None = None) -> S:
    """An instance of a settings class from the values given, checked; `auto` finds the values for "auto".

    >>> make(Training, {"epochs": 3}).epochs
    3
    >>> make(Training, {"epochs": 0})
    Traceback (most recent call last):
        ...
    clpu.errors.BadSetting: epochs must be at least 1, got 0
    """
    fields = setting_fields(cls)
    hints = typing.get_type_hints(cls)
    refuse_unknown(values, fields)
    for name, find_out in (auto or {}).items():
        if isinstance(values.get(name), str) and values[name] == "auto":
            values = {**values, name: find_out()}
    return cls(**{name: _checked(name, hints[name], fields[name], value) for name, value in values.items()})


def to_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them, with lists for tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def from_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from JSON; what `to_json` makes, back."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def parse_value(text: str) -> Any:
    """The value of a setting from the command line: a number, a boolean or a list where the text is one, else the text.

    >>> parse_value("0.1"), parse_value("true"), parse_value("(20, 20)"), parse_value("20,20"), parse_value("adam")
    (0.1, True, (20, 20), (20, 20), 'adam')
    """
    words = {"true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


#: Names that other libraries have for our settings.
ALIASES = {
    "learning_rate": "lr",
    "learning_rate_init": "lr",
    "eta0": "lr",
    "max_iter": "epochs",
    "num_epochs": "epochs",
    "n_epochs": "epochs",
    "bs": "batch_size",
    "optim": "optimizer",
    "solver": "optimizer",
    "wd": "weight_decay",
    "l2": "weight_decay",
    "buffer_size": "memory",
    "hidden_layer_sizes": "hidden",
    "hidden_sizes": "hidden",
    "normalize": "scaling",
    "standardize": "scaling",
}


def refuse_unknown(values: Mapping[str, Any], fields: Mapping[str, object]) -> None:
    """Refuse a name that is not a setting, and say what the settings are."""
    for name in values:
        if name not in fields:
            alias = ALIASES.get(name.lower())
            near = [alias] if alias in fields else difflib.get_close_matches(name, fields, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise BadSetting(f"there is no setting {name!r}{hint} Known settings: {', '.join(sorted(fields))}")


def _checked(name: str, kind: Any, field: dataclasses.Field[Any], value: Any) -> Any:
    if hasattr(value, "item") and not getattr(value, "shape", ()):  # NumPy's and torch's single numbers
        value = value.item()
    if field.metadata.get("auto") and isinstance(value, str) and value == "auto":
        return value
    if type(value) is int and abs(value) > MAX_INTEGER:
        raise BadSetting(f"{name} must be at most {MAX_INTEGER} in size, got {value}")
    if kind is float and type(value) is int:
        value = float(value)
    if typing.get_origin(kind) is tuple:
        return _checked_tuple(name, typing.get_args(kind)[0], value)
    if type(value) is not kind:
        wanted = _KINDS.get(kind, f"of type {kind}") + (' or "auto"' if field.metadata.get("auto") else "")
        raise BadSetting(f"{name} must be {wanted}, got {type(value).__name__}: {value!r:.80}")
    if kind is float and not math.isfinite(value):
        raise BadSetting(f"{name} must be a finite number, got {value}")
    limits = field.metadata
    if limits.get("choices") and value not in limits["choices"]:
        raise BadSetting(f"{name} must be one of {', '.join(limits['choices'])}, got {value!r}")
    if limits.get("at_least") is not None and value < limits["at_least"]:
        raise BadSetting(f"{name} must be at least {limits['at_least']}, got {value}")
    if limits.get("at_most") is not None and value > limits["at_most"]:
        raise BadSetting(f"{name} must be at most {limits['at_most']}, got {value}")
    if limits.get("above") is not None and value <= limits["above"]:
        raise BadSetting(f"{name} must be above {limits['above']}, got {value}")
    return value


#: Types of settings as people call them.
_KINDS = {int: "an integer", float: "a number", bool: "a boolean", str: "a string"}


def _checked_tuple(name: str, kind: type, value: Any) -> tuple[Any, ...]:
    if kind is int and type(value) is int:  # one layer
        value = (value,)
    if isinstance(value, (tuple, list)):
        if kind is int and value and all(type(v) is int and 0 < v < MAX_INTEGER for v in value):
            return tuple(value)
        if kind is float and all(type(v) in (int, float) and abs(v) < MAX_INTEGER for v in value):
            return tuple(float(v) for v in value)
    wanted = "one or more positive integers" if kind is int else "finite numbers"
    raise BadSetting(f"{name} must be {wanted}, got {value!r:.80}")
