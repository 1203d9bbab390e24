"""The metrics of forgetting: can runs that forgot a task be told from runs that never learned it?

Two groups of runs answer on the same test images: actual runs, which learned and forgot, and counterfactual runs,
which never learned. If runs across the groups differ no more than runs within the counterfactual group, nothing
shows that the task was ever learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpu.metrics.learning import Floats

Indices = NDArray[np.intp]

# exp() of less is 0, so that 0 · log 0 becomes 0 · finite = 0 and not NaN.
_LOG_ZERO = -800.0
# Numbers worked on at a time: two or three arrays of this size stay in a core's cache.
_CHUNK = 1 << 15
# Below this many runs a group, a method that forgets exactly is expected to miss an IRR of 0.9.
ENOUGH_RUNS = 5


def jsd(log_p: ArrayLike, log_q: ArrayLike) -> float:
    """Mean Jensen-Shannon divergence, in nats, between two runs' outputs [image, class].

    JSD(p, q) = ½ KL(p, m) + ½ KL(q, m),  m = (p + q) / 2;  0 ≤ JSD ≤ ln 2

    Takes log-probabilities or logits (they are normalised here). Saturated outputs, down to log p = -inf, are fine.

    >>> round(jsd([[0.0, float("-inf")]], [[float("-inf"), 0.0]]), 4)
    0.6931
    """
    return float(jsd_matrix(np.asarray(log_p)[None], np.asarray(log_q)[None])[0, 0])


def jsd_matrix(log_p_runs: ArrayLike, log_q_runs: ArrayLike | None = None) -> Floats:
    """The `jsd` of every run of one group with every run of another: [i, j] for outputs [run, image, class].

    Without a second group, the runs of the first with each other: symmetric, with a diagonal of exact zeros.

    With d = |log p - log q|, a class adds ½ · (-min(p, q) · d - (p + q) · log((1 + e⁻ᵈ) / 2)), which is exactly 0 for
    equal outputs, never overflows, and needs no logarithm of a rounded probability.

    >>> runs = np.log([[[0.9, 0.1]], [[0.5, 0.5]], [[0.5, 0.5]]])
    >>> jsd_matrix(runs).round(3)
    array([[0.   , 0.102, 0.102],
           [0.102, 0.   , 0.   ],
           [0.102, 0.   , 0.   ]])
    """
    p = _outputs(log_p_runs)
    q = p if log_q_runs is None else _outputs(log_q_runs)
    if p.shape[1:] != q.shape[1:]:
        raise ValueError(f"both groups answer on the same images and classes, got {p.shape[1:]} and {q.shape[1:]}")
    within = log_q_runs is None
    left, right = np.triu_indices(len(p), 1) if within else _all_pairs(len(p), len(q))
    totals = np.zeros(len(left))
    step = max(1, _CHUNK // max(1, len(left) * p.shape[2]))
    for start in range(0, p.shape[1], step):
        here = slice(start, start + step)
        log_p = _log_softmax(p[:, here])
        log_q = log_p if within else _log_softmax(q[:, here])
        totals += _divergences(log_p, log_q, left, right)
    means = np.clip(totals / p.shape[1], 0, np.log(2))  # rounding may leave the range by some 1e-17
    result = np.zeros((len(p), len(q)))
    result[left, right] = means
    if within:
        result[right, left] = means
    return result


def _divergences(log_p: Floats, log_q: Floats, left: Indices, right: Indices) -> Floats:
    """Sums over the images [run, image, class] of the divergence of each pair (left, right) of runs."""
    p, q = np.exp(log_p)[left], np.exp(log_q)[right]
    distance = log_p[left]
    distance -= log_q[right]
    np.abs(distance, out=distance)
    total: Floats = -np.einsum("pic,pic->p", np.minimum(p, q), distance)
    np.negative(distance, out=distance)
    np.expm1(distance, out=distance)
    distance *= 0.5
    np.log1p(distance, out=distance)
    p += q
    return 0.5 * (total - np.einsum("pic,pic->p", p, distance))


def _outputs(runs: ArrayLike) -> NDArray[np.floating]:
    x = np.asarray(runs)
    if x.ndim != 3 or 0 in x.shape:
        raise ValueError(f"expected outputs [run, image, class], none of them empty, got an array of shape {x.shape}")
    return x if np.issubdtype(x.dtype, np.floating) else x.astype(float)


def _log_softmax(x: NDArray[np.floating]) -> Floats:
    z = x.astype(np.float64)  # a chunk at a time: outputs usually come as float32
    z -= z.max(axis=2, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=2, keepdims=True))
    return np.maximum(z, _LOG_ZERO, out=z)


def _all_pairs(rows: int, columns: int) -> tuple[Indices, Indices]:
    left, right = np.divmod(np.arange(rows * columns), columns)
    return left, right


def in_group(matrices: Sequence[ArrayLike]) -> Floats:
    """IJSD: the c(c-1)/2 distances between counterfactual runs, each a mean over the forgets.

    IJSD = { mean over forgets t of JSD(f_i^t', f_j^t') : i < j },  on the test images of the task forgotten at t

    `matrices` has one symmetric c × c `jsd_matrix` a forget. One run has no pairs: an empty array.

    >>> in_group([[[0, 0.1], [0.1, 0]], [[0, 0.3], [0.3, 0]]])
    array([0.2])
    """
    d = mean_over_forgets(matrices)
    if d.shape[0] != d.shape[1]:
        raise ValueError(f"expected square matrices of one group of runs, got shape {d.shape}")
    return d[np.triu_indices(len(d), 1)]


def across_group(matrices: Sequence[ArrayLike]) -> Floats:
    """AJSD: the c² distances between actual and counterfactual runs, each a mean over the forgets.

    AJSD = { mean over forgets t of JSD(f_i^t, f_j^t') : i, j },  on the test images of the task forgotten at t

    >>> across_group([[[0.1, 0.2]], [[0.3, 0.2]]])
    array([0.2, 0.2])
    """
    return mean_over_forgets(matrices).ravel()


def mean_over_forgets(matrices: Sequence[ArrayLike]) -> Floats:
    """The mean of one matrix a forget."""
    d = np.asarray(matrices, dtype=float)
    if d.ndim != 3:
        raise ValueError(f"expected one matrix a forget, all of one shape, got an array of shape {d.shape}")
    return d.mean(axis=0)


def js_ratio(ijsd: ArrayLike, ajsd: ArrayLike) -> float:
    """How far the groups are apart, in units of the distance within a group.

    JS-ratio = |mean(IJSD) - mean(AJSD)| / mean(IJSD)

    NaN without pairs. Where all counterfactual runs are equal (mean(IJSD) = 0): 0 if the actual runs equal them too,
    for nothing tells them apart, else infinite.

    >>> round(js_ratio([0.1, 0.1], [0.12, 0.14]), 3), js_ratio([0, 0], [0, 0]), js_ratio([0, 0], [0, 0.1])
    (0.3, 0.0, inf)
    """
    inner, outer = np.asarray(ijsd, dtype=float), np.asarray(ajsd, dtype=float)
    if not inner.size or not outer.size:
        return float("nan")
    return float(ratio(inner.mean(), outer.mean()))


def ratio(inner: ArrayLike, outer: ArrayLike) -> Floats:
    """`js_ratio` of means, element by element."""
    inner, gap = np.asarray(inner, dtype=float), np.abs(np.subtract(inner, outer))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((gap == 0) & (inner == 0), 0.0, gap / inner)


def irr(ijsd: ArrayLike, ajsd: ArrayLike, *, strict: bool = False) -> float:
    """In-range rate: how many across-group distances could just as well be in-group ones.

    IRR = |{d in AJSD : d ≤ max(IJSD)}| / |AJSD|        (`strict`: d < max(IJSD), as the authors' script has it)

    NaN without pairs. See `irr_resolution` for how much it says with few runs.

    >>> irr([0.1, 0.2], [0.15, 0.2, 0.3, 0.4]), irr([0.1, 0.2], [0.15, 0.2, 0.3, 0.4], strict=True)
    (0.5, 0.25)
    """
    inner, outer = np.asarray(ijsd, dtype=float), np.asarray(ajsd, dtype=float)
    if not inner.size or not outer.size:
        return float("nan")
    return float(np.mean(outer < inner.max() if strict else outer <= inner.max()))


@dataclass(frozen=True)
class IrrResolution:
    """How much an IRR from c actual and c counterfactual runs can say."""

    runs: int
    step: float
    expected: float

    @property
    def coarse(self) -> bool:
        """Whether exact forgetting itself is expected to stay below an IRR of 0.9."""
        return self.runs < ENOUGH_RUNS

    def __str__(self) -> str:
        if self.runs < 2:
            return "With one seed there is no pair of counterfactual runs, so IJSD, JS-ratio and IRR do not exist."
        text = (
            f"With {self.runs} seeds IRR moves in steps of 1/{self.runs**2} = {self.step:.2g}, "
            f"and exact forgetting gives about {self.expected:.2f} on average, not 1"
        )
        return text + (f": too coarse to rank methods; use {ENOUGH_RUNS} seeds or more." if self.coarse else ".")


def irr_resolution(runs: int) -> IrrResolution:
    """How coarse IRR is with so many runs in each group.

    IRR moves in steps of 1/c². If forgetting is exact, both groups are alike, and one more distance exceeds the
    largest of m = c(c-1)/2 others with probability 1/(m+1), so a perfect method has m/(m+1) on average: 0.5, 0.75,
    0.86, 0.91, 0.98 with 2, 3, 4, 5, 10 runs; a little less, since distances share runs. It scatters, too: in
    simulations an exact method reaches 0.9 in one case of four with 3 runs, about six of ten with 5, nine of ten
    with 10. Below 5 runs even the average misses 0.9.

    >>> print(irr_resolution(3))
    With 3 seeds IRR moves in steps of 1/9 = 0.11, and exact forgetting gives about 0.75 on average, not 1: too \
coarse to rank methods; use 5 seeds or more.
    """
    if runs < 1:
        raise ValueError(f"expected at least one run, got {runs}")
    pairs = runs * (runs - 1) // 2
    return IrrResolution(runs, 1 / runs**2, pairs / (pairs + 1) if pairs else float("nan"))


def as_published_tasks(forgotten: Sequence[int], classes: Sequence[int]) -> list[list[int]]:
    """The tasks over which the authors' script sums at each forget.

    `forgotten` are the tasks in the order of their forgets. The script's mask is right at the first forget: the
    forgotten task. Then the mixture (p + q) / 2 overwrites the mask, and the k-th row of that mixture, as many
    positive numbers as there are classes, selects the first min(tasks, classes) tasks. (The mixture is that of the
    last task counted before.)

    >>> as_published_tasks([2, 4], classes=[10] * 5), as_published_tasks([2, 4], classes=[2] * 5)
    ([[2], [0, 1, 2, 3, 4]], [[2], [0, 1]])
    """
    counted: list[list[int]] = []
    for task in forgotten:
        counted.append(list(range(min(len(classes), classes[counted[-1][-1]]))) if counted else [task])
    return counted


def as_published(per_task: Sequence[ArrayLike], forgotten: Sequence[int], classes: Sequence[int]) -> list[Floats]:
    """One matrix a forget as the authors' script has it: summed over `as_published_tasks`, so it may exceed ln 2.

    `per_task[forget][task]` is a `jsd_matrix`. Give the result to `in_group`, `across_group` and so on, to `irr` with
    `strict=True`; `spread_as_published` is the script's standard deviation.

    >>> as_published([[[[0.1]], [[0.2]]], [[[0.3]], [[0.4]]]], forgotten=[0, 1], classes=[10, 10])
    [array([[0.1]]), array([[0.7]])]
    """
    counted = as_published_tasks(forgotten, classes)
    if len(counted) != len(per_task):
        raise ValueError(f"got matrices of {len(per_task)} forgets, and {len(counted)} forgotten tasks")
    return [np.asarray(tasks, dtype=float)[chosen].sum(axis=0) for tasks, chosen in zip(per_task, counted)]


def spread_as_published(ijsd: ArrayLike) -> float:
    """The authors' standard deviation of IJSD: each pair counted twice (i, j and j, i), n - 1 in the denominator.

    >>> round(spread_as_published([0.1, 0.2]), 4)
    0.0577
    """
    twice = np.repeat(np.asarray(ijsd, dtype=float), 2)
    return float(np.std(twice, ddof=1)) if len(twice) > 1 else float("nan")
