"""Tables with named columns: data frames, dictionaries of columns, and delimited text files.

pandas and polars frames are taken as they are; neither package is imported. Columns are put in the order of their
names, so a frame means the same whatever its order, and no task depends on those of a different one.

| values | become |
|---|---|
| numbers, booleans | themselves; an empty cell is a missing value (NaN) |
| text | 16 columns with a 1 in one of them, which a hash of column and text chooses; other rows play no part |
| dates and times | nothing: they are refused, with advice |
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clpu.errors import BadData
from clpu.labels import listed

#: Into how many columns a text column is hashed.
WIDTH = 16
#: How files write a missing value.
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
SEPARATORS = "\t;|"
#: From how many rows on a column can be taken for an identifier.
MANY = 20
_NAMED_ID = re.compile(r"(?:^|[^A-Za-z])(?:[Ii]d|ID|uuid|UUID|[Ii]ndex)$|[a-z]I[dD]$")
_WITH_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:[.,' \u00a0\u202f]\d{3})+(?:[.,]\d+)?$")

#: A column's name, and "number" or "text".
Column = tuple[str, str]


def is_table(x: Any) -> bool:
    """Whether data have named columns."""
    return isinstance(x, Mapping) or all(hasattr(type(x), name) for name in ("columns", "__getitem__", "to_numpy"))


def take(x: Any, y: Any, ignore: Sequence[str] | str = (), people: Any = None, records: Any = None) -> tuple[Any, ...]:
    """A table's inputs, labels, people and ids of records; each but the first may be the name of a column.

    Columns to `ignore`, several or one, are left out.
    """
    columns = _columns(x)
    _check_order(x, y)
    y = str(y) if isinstance(y, int) and str(y) in columns else y  # a data frame may have numbers for names
    ignored = [ignore] if isinstance(ignore, str) else [str(name) for name in ignore]
    named = [*ignored, *(value for value in (y, people, records) if isinstance(value, str))]
    strange = [name for name in named if name not in columns]
    if strange:
        raise BadData(f"there is no column {strange[0]!r:.60}; the columns are {listed(columns)}")
    rest = {name: values for name, values in columns.items() if name not in named}
    return rest, *(columns[value] if isinstance(value, str) else value for value in (y, people, records))


def encode(
    x: Any, wanted: Sequence[Sequence[str]] | None = None, text: Collection[str] | None = None
) -> tuple[NDArray[np.float64], list[Column]]:
    """The numbers of a table (n, inputs), and its columns by name.

    `wanted` are the columns of a task that was learned: they are looked up by name, and others are left alone. `text`
    are the columns of text; if it is not given, the values tell, so that one record may decide.

    >>> encode({"b": [1, 2], "a": [0.5, float("nan")]})[0].tolist()
    [[0.5, 1.0], [nan, 2.0]]
    """
    columns = _columns(x)
    if wanted is not None:
        missing = [name for name, _ in wanted if name not in columns]
        if missing:
            raise BadData(f"missing column{'s' if len(missing) > 1 else ''} {listed(missing)}; got {listed(columns)}")
        parts = [_encoded(name, columns[name], kind) for name, kind in wanted]
        return np.concatenate(parts, 1), [(name, kind) for name, kind in wanted]
    strange = [name for name in text or () if name not in columns]
    if strange:
        raise BadData(f"there is no column {strange[0]!r:.60}; the columns are {listed(columns)}")
    found: list[Column] = [
        (name, _kind(name, columns[name]) if text is None else _declared(name, columns[name], text))
        for name in sorted(columns)
    ]
    if not found:
        raise BadData("the table has no columns to learn from")
    return np.concatenate([_encoded(name, columns[name], kind) for name, kind in found], 1), found


def text_columns(tasks: Mapping[str, Any]) -> list[str]:
    """The columns of text that a state's tasks were learned from."""
    columns = (column for task in tasks.values() for column in task.facts.get("columns", []))
    return list(dict.fromkeys(name for name, kind in columns if kind == "text"))


def width(columns: Sequence[Sequence[str]]) -> int:
    """Count the numbers that encode a row of these columns."""
    return sum(1 if kind == "number" else WIDTH for _, kind in columns)


def are_columns(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a task's facts hold columns, or none, that inputs of this shape can come from."""
    if not isinstance(value, list) or not all(
        isinstance(column, list) and len(column) == 2 and isinstance(column[0], str) and column[1] in ("number", "text")
        for column in value
    ):
        return False
    return not value or (sorted(value) == value and (width(value),) == shape)


def disagreement(before: Sequence[Any], now: Sequence[Column]) -> str:
    """Describe how the columns of a new task differ from those of the active ones; empty if they do not."""
    then, new = dict(before), dict(now)
    parts = [f"missing: {listed(sorted(then.keys() - new.keys()))}"] if then.keys() - new.keys() else []
    parts += [f"unexpected: {listed(sorted(new.keys() - then.keys()))}"] if new.keys() - then.keys() else []
    kinds = [name for name in then if name in new and then[name] != new[name]]
    parts += [f"{name!r:.60} was {then[name]} and is {new[name]}" for name in kinds]
    return "; ".join(parts)


def _columns(x: Any) -> dict[str, NDArray[Any]]:
    names = list(x) if isinstance(x, Mapping) else list(x.columns)
    if len(set(map(str, names))) < len(names):
        raise BadData(f"two columns have the same name among {listed(names)}")
    columns = {str(name): _array(str(name), x[name]) for name in names}
    odd = next((name for name, array in columns.items() if array.ndim != 1), None)
    if odd is not None:
        raise BadData(f"column {odd!r:.60} of the table must have one value per row, got shape {columns[odd].shape}")
    if len({len(array) for array in columns.values()}) > 1:
        raise BadData("the columns of a table must have the same length")
    return columns


def _array(name: str, values: Any) -> NDArray[Any]:
    """A column as an array, in which values of a list stay as they are unless all are of one type.

    NumPy would make them one: True a 1 because of a 2 in another row, a wide integer a float without its last digits.
    """
    kinds = {type(value) for value in values} if isinstance(values, (list, tuple)) else set()
    try:
        array = None if kinds & {list, tuple, set} or len(kinds) > 1 else np.asarray(values)
    except Exception as error:  # of whatever package the table comes from
        raise BadData(f"column {name!r:.60} cannot be read as an array: {error!s:.100}") from None
    if array is None or (kinds == {int} and array.dtype.kind == "f"):
        array = np.empty(len(values), dtype=object)
        array[:] = values
    return array


def _check_order(x: Any, y: Any) -> None:
    """Refuse pandas' frame and series if they have the same rows in a different order, by their index."""
    mine: Any = getattr(x, "index", None)
    other: Any = getattr(y, "index", None)
    if not hasattr(mine, "equals") or not hasattr(other, "equals"):
        return
    if not mine.equals(other) and mine.sort_values().equals(other.sort_values()):
        raise BadData("x and y have the same rows in a different order, by their index; write y = y.loc[x.index]")


def _kind(name: str, values: NDArray[Any]) -> str:
    """ "number" or "text"; dates, and whatever else there is, are refused."""
    if values.dtype.kind in "iu":
        _refuse_identifiers(name, values)
    if values.dtype.kind in "fiub":
        return "number"
    if values.dtype.kind in "Mm":
        raise BadData(_about_dates(name))
    present = [value for value in values.tolist() if not _is_missing(value)]
    if all(isinstance(value, (int, float, Decimal, np.number, np.bool_)) for value in present):
        return "number"
    if not all(isinstance(value, str) for value in present):
        kinds = ", ".join(sorted({type(value).__name__ for value in present}))
        if any(hasattr(value, "year") or hasattr(value, "hour") for value in present):
            raise BadData(_about_dates(name))
        raise BadData(f"column {name!r:.60} holds {kinds}; columns hold numbers, booleans or text")
    some = present[:20]
    if some and all(_looks_like_a_date(value) for value in some):
        raise BadData(_about_dates(name))
    if len(present) >= MANY and all(map(_WITH_THOUSANDS.match, some)):
        raise BadData(f"column {name!r:.60} holds numbers with thousands separators ({some[0]!r:.40}); remove them")
    if len(present) >= MANY and len(set(present)) > len(present) / 2:
        raise BadData(
            f"column {name!r:.60} has a different text in most rows ({present[0]!r:.40}, …): {_leave_out(name)}; for "
            "sentences, compute features first (docs/your-data.md)"
        )
    return "text"


def _declared(name: str, values: NDArray[Any], text: Collection[str]) -> str:
    """The kind of a column where columns of text are named; others must hold numbers."""
    if name in text:
        return "text"
    if _kind(name, values) == "text":
        raise BadData(
            f"column {name!r:.60} holds text, which must be declared where single records can be forgotten, because "
            "what one of them holds must not decide about the others: "
            f"text=[{name!r:.60}] (--text-column on the command line)"
        )
    return "number"


def _refuse_identifiers(name: str, values: NDArray[Any]) -> None:
    """Refuse row numbers, in any order, and columns that are called an id and hold a number of its own in most rows."""
    if len(values) < MANY:
        return
    distinct, span = len(np.unique(values)), int(values.max()) - int(values.min()) + 1
    if distinct == len(values) == span:
        raise BadData(
            f"column {name!r:.60} numbers the rows, {values.min()} to {values.max()}: {_leave_out(name)}; if it means "
            "something, hand it in as decimals (1.0)"
        )
    if distinct > 0.9 * len(values) and _NAMED_ID.search(name.strip()):
        raise BadData(
            f"column {name!r:.60} is called an identifier and has a different number in most rows: "
            f"{_leave_out(name)}, or rename it"
        )


def _leave_out(name: str) -> str:
    return f"leave an identifier out (ignore=[{name!r:.60}], --ignore on the command line)"


def _encoded(name: str, values: NDArray[Any], kind: str) -> NDArray[np.float64]:
    """One column as numbers (n, 1), or text as (n, 16)."""
    if kind == "number":
        numbers = _numbers(name, values)
        if np.isinf(numbers).any():
            raise BadData(f"column {name!r:.60} holds infinity in {np.isinf(numbers).sum()} of {len(numbers)} rows")
        return numbers[:, None]
    encoded = np.zeros((len(values), WIDTH))
    for row, value in enumerate(values.tolist()):
        if not _is_missing(value):
            value = value.item() if isinstance(value, np.generic) else value
            whole = isinstance(value, float) and value.is_integer()  # NumPy writes 1 as 1.0 beside a 2.5
            if whole and abs(value) >= 2**53:
                raise BadData(f"column {name!r:.60} holds {value!r} as text, whose digits are lost: hand it in as text")
            encoded[row, bucket(name, str(int(value)) if whole else str(value))] = 1.0
    return encoded


def _numbers(name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    """A column of numbers, in which NaN stands for a missing one."""
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    if values.dtype.kind in "Mm":
        raise BadData(_about_dates(name))
    try:
        return np.array([np.nan if _is_missing(v) else float(v) for v in values.tolist()], dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadData(f"column {name!r:.60} held numbers when the task was learned: {error!s:.100}") from None


def bucket(column: str, text: str) -> int:
    """Return which of the columns that encode a text column has the 1."""
    digest = hashlib.blake2b(f"{len(column)}:{column}={text}".encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % WIDTH


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    try:
        return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)
    except (TypeError, ValueError):
        return False


def _looks_like_a_date(text: str) -> bool:
    """2026-11-18, 18.11.2026, 11/18/2026, with or without a time."""
    day = text.strip().replace("T", " ").split(" ")[0]
    for sign in "-./":
        parts = day.split(sign)
        if len(parts) == 3 and all(part.isdecimal() for part in parts):
            return sorted(map(len, parts))[-1] in (2, 4)
    return False


def _about_dates(name: str) -> str:
    return (
        f"column {name!r:.60} holds dates or times: replace it by numbers that mean something for your question, "
        "such as days since an event, the month or the hour"
    )


@dataclass(frozen=True)
class Delimited:
    """A delimited text file: its columns as numbers or text, and what was found out about its form."""

    columns: dict[str, NDArray[Any]]
    header: bool
    separator: str
    notes: list[str] = field(default_factory=list)


def read_delimited(text: str, what: str, verbatim: Collection[str] = ()) -> Delimited:
    """Read comma-, semicolon-, tab- or bar-separated text, with or without a header; `what` names it in messages.

    Columns that are `verbatim` stay text, whatever they look like, with `None` for an empty cell: 007 is not 7.

    >>> read_delimited("1.5;red\\n2,5;blue\\n", "a file").columns["1"].tolist()
    [1.5, 2.5]
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise BadData(f"{what} is empty")
    separator = _separator(lines[:20])
    try:
        rows = [
            row for row in csv.reader(io.StringIO(text), delimiter=separator, strict=True) if any(map(str.strip, row))
        ]
    except csv.Error as error:
        raise BadData(f"{what} cannot be read as a table: {error!s:.100}") from None
    count = len(rows[0])
    odd = next((number for number, row in enumerate(rows, 1) if len(row) != count), None)
    if odd is not None:
        raise BadData(f"{what} has {count} values in its first row and {len(rows[odd - 1])} in row {odd}")
    decimal_comma = separator == ";"
    header = _has_header(rows, decimal_comma)
    names = [name.strip() for name in rows[0]] if header else [str(number) for number in range(1, count + 1)]
    body = rows[1:] if header else rows
    notes = [] if header else [f"no header found, so columns are named 1 to {count}"]
    if header and not names[0] and count > 1:
        notes.append("the first column has no name and is left out")
        names, body = names[1:], [row[1:] for row in body]
    if not body:
        raise BadData(f"{what} has no rows below its header")
    if len(set(names)) < len(names) or "" in names:
        raise BadData(f"{what} has a header with empty or repeated names: {listed(names)}")
    columns = {}
    for i, name in enumerate(names):
        cells = [row[i] for row in body]
        as_text = np.array([cell.strip() or None for cell in cells], dtype=object)
        columns[name] = as_text if name in verbatim else _values(cells, decimal_comma)
    shown = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}[separator]
    notes += [f"separated by {shown}"] if separator != "," else []
    notes += [_about_mixed(name, values, decimal_comma) for name, values in columns.items() if name not in verbatim]
    return Delimited(columns, header, separator, [note for note in notes if note])


def _about_mixed(name: str, values: NDArray[Any], decimal_comma: bool) -> str:
    """What to say of a column of numbers that one cell or a few make a column of text; empty for any other."""
    if values.dtype.kind != "O":
        return ""
    present = [cell for cell in values.tolist() if isinstance(cell, str) and not _is_missing(cell)]
    odd = [cell for cell in present if _number(cell, decimal_comma) is None]
    if not odd or len(odd) > len(present) / 2:
        return ""
    return (
        f"column {name!r:.60} is taken as text, because {len(odd)} of its {len(present)} values are not numbers, such "
        f"as {odd[0]!r:.40}"
    )


def _separator(lines: list[str]) -> str:
    """Tab, semicolon or bar if it splits all of these lines into equally many parts, else the comma.

    (In text with semicolons, commas may be decimal.)
    """

    def splits(separator: str) -> bool:
        try:
            counts = {len(row) for row in csv.reader(lines, delimiter=separator)}
        except csv.Error:
            return False
        return len(counts) == 1 and counts.pop() > 1

    return next(filter(splits, SEPARATORS), ",")


def _number(cell: str, decimal_comma: bool) -> float | None:
    text = cell.strip()
    if decimal_comma and text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    if "_" in text or text.lower().lstrip("+-") in ("inf", "infinity", "nan"):
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _has_header(rows: list[list[str]], decimal_comma: bool) -> bool:
    """The first row is a header if none of its cells is a number, is empty, or occurs again in its column.

    The first cell may be empty: tables are often written with their row numbers, which have no name.
    """
    first = rows[0]
    if any(_number(cell, decimal_comma) is not None or not (cell.strip() or i == 0) for i, cell in enumerate(first)):
        return False
    return any(map(str.strip, first)) and not any(cell == row[i] for row in rows[1:] for i, cell in enumerate(first))


def _values(cells: list[str], decimal_comma: bool) -> NDArray[Any]:
    """A column as integers if all are, as floats if all are numbers or missing, else as text."""
    numbers = [None if _is_missing(cell) else _number(cell, decimal_comma) for cell in cells]
    if any(number is None and not _is_missing(cell) for number, cell in zip(numbers, cells)):
        return np.array([cell.strip() for cell in cells], dtype=object)
    if None not in numbers and all(cell.strip().lstrip("+-").isdecimal() for cell in cells):
        return np.array([int(cell) for cell in cells], dtype=object if max(map(len, cells)) > 18 else np.int64)
    return np.array([np.nan if number is None else number for number in numbers])
