"""Records in a leaf: rows of small integers with their labels and, where the caller gave them, their ids.

This is what a method that forgets records keeps, and all that it keeps: one leaf per task and set of people. Rows are
sorted by their content, so that equal records are equal bytes, whatever the order in which they came. The labels' names
are in the leaf too, so that no other leaf changes when a label comes or goes. Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clpu.errors import BadState
from clpu.io import canonical
from clpu.requests import Label, Scope
from clpu.state.leaf import Leaf, Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The tensors of such a leaf. Names are JSON in UTF-8: labels in ascending order, ids in the order of the rows.
SCHEMA = {"rows": Spec("I8", (None, None)), "y": Spec("I32", (None,)), "labels": Spec("U8", (None,))}
IDS = {"ids?": Spec("U8", (None,))}


@dataclass(frozen=True, eq=False)
class Records:
    """Rows (n, features) of int8, `y` (n,) the position of each row's label in `labels`, `ids` (n) or empty strings."""

    rows: NDArray[Any]
    y: NDArray[Any]
    labels: tuple[Label, ...]
    ids: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of_leaf(cls, leaf: Leaf) -> Records:
        """Read what `to_leaf` wrote; `BadState` for anything else."""
        return leaf.derived("records", lambda: cls._read(leaf))

    @classmethod
    def _read(cls, leaf: Leaf) -> Records:
        try:
            labels = tuple(_names(leaf, "labels"))
            ids = tuple(_names(leaf, "ids")) if "ids" in leaf.specs else ()
            return cls(leaf.array("rows"), leaf.array("y"), labels, ids)
        except (KeyError, ValueError, TypeError) as error:
            raise BadState(f"a leaf does not hold records: {error!s:.200}") from None

    def to_leaf(self) -> Leaf:
        """The leaf of these records, in the one order that they have."""
        import numpy as np

        used = np.unique(self.y)
        labels = [self.labels[i] for i in used]
        y = np.searchsorted(used, self.y).astype(np.int32)
        rows = np.ascontiguousarray(self.rows, dtype=np.int8)
        # By the rows' bytes, then by label and id; big-endian numbers sort as bytes like as numbers.
        numbers: list[NDArray[Any]] = (
            [y] if not any(self.ids) else [y, np.unique(np.array(self.ids), return_inverse=True)[1]]
        )
        keys = [rows.view(np.uint8), *(n.astype(">i4").view(np.uint8).reshape(-1, 4) for n in numbers)]
        whole = np.concatenate(keys, 1)
        order = np.argsort(whole.view(f"V{whole.shape[1]}").ravel(), kind="stable")
        arrays: dict[str, NDArray[Any]] = {"rows": rows[order], "y": y[order], "labels": _bytes(labels)}
        if any(self.ids):
            arrays["ids"] = _bytes([self.ids[i] for i in order.tolist()])
        return Leaf.of_arrays(arrays)

    def check(self) -> None:
        """Refuse records that are not written as `to_leaf` writes them; `BadState`."""
        kinds = {type(label) for label in self.labels}
        good = len(self.y) == len(self.rows) > 0 and self.labels and len(kinds) == 1 and kinds <= {int, str, bool}
        good = good and len(self.ids) in (0, len(self.rows)) and all(type(one) is str for one in self.ids)
        good = good and int(self.y.min()) >= 0 and int(self.y.max()) < len(self.labels)
        good = good and list(self.labels) == sorted(set(self.labels))
        if not good:
            raise BadState("a leaf's rows, labels and ids do not fit together")

    def matching(self, scope: Scope, positions: Mapping[str, int]) -> NDArray[Any]:
        """Find the rows with one of the labels and one of the ids that a scope names; people are not considered.

        `positions` are those of the ids, as `ids_of` has them.
        """
        import numpy as np

        chosen = np.ones(len(self), dtype=bool)
        if scope.labels:
            chosen &= np.array([Scope(labels=scope.labels).covers(label) for label in self.labels])[self.y]
        if scope.records:
            named = np.zeros(len(self), dtype=bool)
            named[[positions[one] for one in scope.records if one in positions]] = True
            chosen &= named
        return chosen

    def chosen(self, which: NDArray[Any]) -> Records:
        """The records for which `which` is true."""
        import numpy as np

        used = np.unique(self.y[which])
        ids = tuple(one for one, keep in zip(self.ids, which.tolist()) if keep)
        y = np.searchsorted(used, self.y[which]).astype(np.int32)
        return Records(self.rows[which], y, tuple(self.labels[i] for i in used), ids)

    def joined(self, other: Records) -> Records:
        """These records and others."""
        import numpy as np

        labels = sorted({*self.labels, *other.labels})
        y = [np.searchsorted(labels, part.labels).astype(np.int32)[part.y] for part in (self, other)]
        ids: Sequence[str] = ()
        if self.ids or other.ids:
            ids = [one for part in (self, other) for one in part.ids or ("",) * len(part)]
        return Records(np.concatenate([self.rows, other.rows]), np.concatenate(y), tuple(labels), tuple(ids))

    def counts(self) -> dict[Label, int]:
        """Count the records of each label."""
        import numpy as np

        return dict(zip(self.labels, np.bincount(self.y, minlength=len(self.labels)).tolist()))


def labels_of(leaf: Leaf) -> list[Label]:
    """The labels that a leaf's records have."""
    return leaf.derived("labels", lambda: _names(leaf, "labels"))


def ids_of(leaf: Leaf) -> dict[str, int]:
    """The ids of a leaf's records, with the rows that they are in."""
    return leaf.derived("ids", lambda: {one: row for row, one in enumerate(Records.of_leaf(leaf).ids) if one})


def _bytes(names: Sequence[Any]) -> NDArray[Any]:
    import numpy as np

    return np.frombuffer(canonical(list(names)).encode(), dtype=np.uint8)


def _names(leaf: Leaf, tensor: str) -> list[Any]:
    names = json.loads(leaf.array(tensor).tobytes())
    if not isinstance(names, list):
        raise TypeError(f"{tensor} is not a list")
    return names
