"""How methods, streams and numbers are written for people."""

from __future__ import annotations

import math

#: Methods as the paper prints them, in its order. A user's own method is printed by its name.
METHODS = {
    "ind": "Ind",
    "seq": "Seq",
    "ewc": "EWC",
    "er": "ER",
    "lwf": "LwF",
    "lsf": "LSF",
    "der++": "DER++",
    "clpu-der++-scratch": "CLPU-DER++ (scratch)",
    "clpu-der++": "CLPU-DER++",
}
#: The paper's upper bound takes no part in "best".
UPPER_BOUND = "ind"

_WORDS = {"perm": "Perm", "rot": "Rot", "split": "Split", "mnist": "MNIST", "fashion": "Fashion", "digits": "Digits"}


def method(name: str) -> str:
    """A method's name for people.

    >>> method("clpu-der++-scratch"), method("my-own")
    ('CLPU-DER++ (scratch)', 'my-own')
    """
    return METHODS.get(name, name)


def stream(name: str) -> str:
    """A stream's name for people, as the paper has it.

    >>> stream("perm-mnist"), stream("split-cifar100"), stream("rot-digits")
    ('Perm-MNIST', 'Split-CIFAR100', 'Rot-Digits')
    """
    return "-".join(_WORDS.get(word, word.replace("cifar", "CIFAR")) for word in name.split("-"))


def number(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """A number with a real minus sign; – for what does not exist, ∞ for what has no bound.

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
    """A number of bytes.

    >>> size(812), size(398_000), size(12_400_000)
    ('812 B', '398 kB', '12.4 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            scaled = count / factor
            return f"{scaled:.{1 if scaled < 100 else 0}f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """A time span.

    >>> duration(0.25), duration(42), duration(754), duration(7500)
    ('0.2 s', '42 s', '12 min 34 s', '2 h 5 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
