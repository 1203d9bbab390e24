"""The bases by name."""

from __future__ import annotations

from clpu.bases.base import Base, Random, RandomSettings, Raw, RawSettings
from clpu.bases.pretrained import Images, ImageSettings, Sentences, TextSettings
from clpu.bases.signals import Signals, SignalSettings
from clpu.bases.words import Words, WordSettings

__all__ = ["SETTINGS", "Base", "load"]

#: The bases by the name that `network=` takes, with the class of their settings.
SETTINGS: dict[str, type] = {
    "base:raw": RawSettings,
    "base:random": RandomSettings,
    "base:signals": SignalSettings,
    "base:words": WordSettings,
    "base:efficientnet-lite0": ImageSettings,
    "base:minilm": TextSettings,
}


def load(name: str, settings: object) -> Base:
    """Return a base by name; `NotCached` if its weights have not been downloaded."""
    kinds: dict[str, type] = {
        "base:raw": Raw,
        "base:random": Random,
        "base:signals": Signals,
        "base:words": Words,
        "base:efficientnet-lite0": Images,
        "base:minilm": Sentences,
    }
    made: Base = kinds[name](settings)
    return made
