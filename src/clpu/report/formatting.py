"""Format benchmark names, numbers and sizes for readers."""

from __future__ import annotations

import math

_WORDS = {
    **{"perm": "Perm", "rot": "Rot", "split": "Split", "people": "People"},
    **{"mnist": "MNIST", "fashion": "Fashion", "digits": "Digits", "hapt": "HAPT", "mail": "Mail"},
}


def benchmark(name: str) -> str:
    """Format a benchmark's name as the paper prints it.

    >>> benchmark("perm-mnist"), benchmark("split-cifar100"), benchmark("rot-digits")
    ('Perm-MNIST', 'Split-CIFAR100', 'Rot-Digits')
    """
    return "-".join(_WORDS.get(word, word.replace("cifar", "CIFAR")) for word in name.split("-"))


def number(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """Format a number with a real minus sign; – for NaN, ∞ for infinity.

    >>> number(-0.5), number(0.004), number(float("nan")), number(float("inf")), number(0.25, sign=True)
    ('−0.50', '0.00', '–', '∞', '+0.25')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    value = round(value, digits) + 0.0  # + 0.0 turns -0.0 into 0.0
    return f"{value:{'+' if sign and value else ''}.{digits}f}".replace("-", "−")


def size(count: float) -> str:
    """Format a number of bytes.

    >>> size(812), size(398_000), size(12_400_000)
    ('812 B', '398 kB', '12.4 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            scaled = count / factor
            return f"{scaled:.{1 if scaled < 100 else 0}f} {unit}"
    return f"{count:.0f} B"
