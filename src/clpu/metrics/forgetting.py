"""The metrics of forgetting: can replicas that forgot a task be distinguished from replicas that never learned it?

Two groups of replicas are tested on the same images: the actual group, which learned and forgot, and the counterfactual
group, which never learned. If replicas across the groups differ no more than replicas within the counterfactual group,
nothing shows that the task was ever learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpu.metrics.learning import Floats

Indices = NDArray[np.intp]

# exp() of anything less is 0, so that 0 · log 0 becomes 0 · finite = 0 and not NaN.
_LOG_ZERO = -800.0
# Numbers processed at a time: two or three arrays of this size fit into a core's cache.
_CHUNK = 1 << 15
# With fewer replicas per group, a method that forgets exactly is expected to fall below an IRR of 0.9.
ENOUGH_REPLICAS = 5


def jsd(log_p: ArrayLike, log_q: ArrayLike) -> float:
    """Compute the mean Jensen-Shannon divergence, in nats, between two replicas' outputs [image, class].

    JSD(p, q) = ½ KL(p, m) + ½ KL(q, m),  m = (p + q) / 2;  0 ≤ JSD ≤ ln 2

    Takes log-probabilities or logits (they are normalised here). Saturated outputs, down to log p = -inf, are allowed.

    >>> round(jsd([[0.0, float("-inf")]], [[float("-inf"), 0.0]]), 4)
    0.6931
    """
    return float(jsd_matrix(np.asarray(log_p)[None], np.asarray(log_q)[None])[0, 0])


def jsd_matrix(log_p_replicas: ArrayLike, log_q_replicas: ArrayLike | None = None) -> Floats:
    """Compute the `jsd` of every replica of one group with every replica of another.

    Takes outputs [replica, image, class]. Without a second group, the replicas of the first with each other: symmetric,
    with a diagonal of exact zeros.

    With d = |log p - log q|, each class adds ½ · (-min(p, q) · d - (p + q) · log((1 + e⁻ᵈ) / 2)), which is exactly 0
    for equal outputs, never overflows, and needs no logarithm of a rounded probability.

    >>> replicas = np.log([[[0.9, 0.1]], [[0.5, 0.5]], [[0.5, 0.5]]])
    >>> jsd_matrix(replicas).round(3)
    array([[0.   , 0.102, 0.102],
           [0.102, 0.   , 0.   ],
           [0.102, 0.   , 0.   ]])
    """
    p = _outputs(log_p_replicas)
    q = p if log_q_replicas is None else _outputs(log_q_replicas)
    if p.shape[1:] != q.shape[1:]:
        raise ValueError(
            f"both groups must have outputs for the same images and classes, got {p.shape[1:]} and {q.shape[1:]}"
        )
    within = log_q_replicas is None
    left, right = np.triu_indices(len(p), 1) if within else _all_pairs(len(p), len(q))
    totals = np.zeros(len(left))
    step = max(1, _CHUNK // max(1, len(left) * p.shape[2]))
    for start in range(0, p.shape[1], step):
        chunk = slice(start, start + step)
        log_p = _log_softmax(p[:, chunk])
        log_q = log_p if within else _log_softmax(q[:, chunk])
        totals += _divergences(log_p, log_q, left, right)
    means = np.clip(totals / p.shape[1], 0, np.log(2))  # rounding may leave the range by about 1e-17
    result = np.zeros((len(p), len(q)))
    result[left, right] = means
    if within:
        result[right, left] = means
    return result


def _divergences(log_p: Floats, log_q: Floats, left: Indices, right: Indices) -> Floats:
    """Sum the divergence of each pair (left, right) of replicas over images, for outputs [replica, image, class]."""
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


def _outputs(replicas: ArrayLike) -> NDArray[np.floating]:
    x = np.asarray(replicas)
    if x.ndim != 3 or 0 in x.shape:
        raise ValueError(f"expected non-empty outputs [replica, image, class], got an array of shape {x.shape}")
    return x if np.issubdtype(x.dtype, np.floating) else x.astype(float)


def _log_softmax(x: NDArray[np.floating]) -> Floats:
    z = x.astype(np.float64)  # one chunk at a time: outputs are usually float32
    z -= z.max(axis=2, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=2, keepdims=True))
    return np.maximum(z, _LOG_ZERO, out=z)


def _all_pairs(rows: int, columns: int) -> tuple[Indices, Indices]:
    left, right = np.divmod(np.arange(rows * columns), columns)
    return left, right


def in_group(matrices: Sequence[ArrayLike]) -> Floats:
    """Compute IJSD: the c(c-1)/2 distances between counterfactual replicas, each a mean over forget requests.

    IJSD = { mean over forget requests t of JSD(f_i^t', f_j^t') : i < j },  on test images of the task forgotten at t

    `matrices` has one symmetric c × c `jsd_matrix` per forget request. One replica has no pairs: an empty array.

    >>> in_group([[[0, 0.1], [0.1, 0]], [[0, 0.3], [0.3, 0]]])
    array([0.2])
    """
    d = mean_over_forgets(matrices)
    if d.shape[0] != d.shape[1]:
        raise ValueError(f"expected square matrices of one group of replicas, got shape {d.shape}")
    return d[np.triu_indices(len(d), 1)]


def across_group(matrices: Sequence[ArrayLike]) -> Floats:
    """Compute AJSD: the c² distances between actual and counterfactual replicas, each a mean over forget requests.

    AJSD = { mean over forget requests t of JSD(f_i^t, f_j^t') : i, j },  on test images of the task forgotten at t

    >>> across_group([[[0.1, 0.2]], [[0.3, 0.2]]])
    array([0.2, 0.2])
    """
    return mean_over_forgets(matrices).ravel()


def mean_over_forgets(matrices: Sequence[ArrayLike]) -> Floats:
    """Compute the mean of matrices, one per forget request."""
    d = np.asarray(matrices, dtype=float)
    if d.ndim != 3:
        raise ValueError(f"expected one matrix per forget request, all of one shape, got an array of shape {d.shape}")
    return d.mean(axis=0)


def js_ratio(ijsd: ArrayLike, ajsd: ArrayLike) -> float:
    """Compute how far the groups are apart, relative to the distance within a group.

    JS-ratio = |mean(IJSD) - mean(AJSD)| / mean(IJSD)

    NaN without pairs. If all counterfactual replicas are equal (mean(IJSD) = 0): 0 if the actual replicas are
    equal to them too, because nothing distinguishes them, else infinite.

    >>> round(js_ratio([0.1, 0.1], [0.12, 0.14]), 3), js_ratio([0, 0], [0, 0]), js_ratio([0, 0], [0, 0.1])
    (0.3, 0.0, inf)
    """
    inner, outer = np.asarray(ijsd, dtype=float), np.asarray(ajsd, dtype=float)
    if not inner.size or not outer.size:
        return float("nan")
    return float(ratio(inner.mean(), outer.mean()))


def ratio(inner: ArrayLike, outer: ArrayLike) -> Floats:
    """Compute `js_ratio` of means, element by element."""
    inner, gap = np.asarray(inner, dtype=float), np.abs(np.subtract(inner, outer))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((gap == 0) & (inner == 0), 0.0, gap / inner)


def irr(ijsd: ArrayLike, ajsd: ArrayLike, *, strict: bool = False) -> float:
    """Compute the in-range rate: the share of across-group distances that could just as well be in-group ones.

    IRR = |{d in AJSD : d ≤ max(IJSD)}| / |AJSD|        (`strict`: d < max(IJSD), as in the authors' script)

    NaN without pairs, and with `strict` where all distances are 0, because the method draws nothing: then no distance
    is smaller than another, which says nothing about forgetting. See `irr_resolution` for its resolution with few
    replicas.

    >>> irr([0.1, 0.2], [0.15, 0.2, 0.3, 0.4]), irr([0.1, 0.2], [0.15, 0.2, 0.3, 0.4], strict=True)
    (0.5, 0.25)
    """
    inner, outer = np.asarray(ijsd, dtype=float), np.asarray(ajsd, dtype=float)
    if not inner.size or not outer.size or (strict and not inner.any() and not outer.any()):
        return float("nan")
    return float(np.mean(outer < inner.max() if strict else outer <= inner.max()))


@dataclass(frozen=True)
class IrrResolution:
    """The resolution of an IRR from c actual and c counterfactual replicas."""

    replicas: int
    step: float
    expected: float

    @property
    def coarse(self) -> bool:
        """Whether even exact forgetting is expected to stay below an IRR of 0.9."""
        return self.replicas < ENOUGH_REPLICAS

    def __str__(self) -> str:
        if self.replicas < 2:
            return "With one seed there is no pair of counterfactual replicas, so IJSD, JS-ratio and IRR do not exist."
        text = (
            f"With {self.replicas} seeds IRR changes in steps of 1/{self.replicas**2} = {self.step:.2g}, "
            f"and exact forgetting gives about {self.expected:.2f} on average, not 1"
        )
        return text + (f": too coarse to rank methods; use {ENOUGH_REPLICAS} seeds or more." if self.coarse else ".")


def irr_resolution(replicas: int) -> IrrResolution:
    """Compute the resolution of IRR for a given number of replicas per group.

    IRR changes in steps of 1/c². If forgetting is exact, both groups have the same distribution, and one more distance
    exceeds the largest of m = c(c-1)/2 others with probability 1/(m+1). So an exact method has m/(m+1) on average: 0.5,
    0.75, 0.86, 0.91, 0.98 with 2, 3, 4, 5, 10 replicas; a little less, because distances share replicas. It also
    varies: in simulations an exact method reaches 0.9 in one case out of four with 3 replicas, about six out of ten
    with 5, nine out of ten with 10. With fewer than 5 replicas even the average is below 0.9.

    >>> print(irr_resolution(3))
    With 3 seeds IRR changes in steps of 1/9 = 0.11, and exact forgetting gives about 0.75 on average, not 1: too \
coarse to rank methods; use 5 seeds or more.
    """
    if replicas < 1:
        raise ValueError(f"expected at least one replica, got {replicas}")
    pairs = replicas * (replicas - 1) // 2
    return IrrResolution(replicas, 1 / replicas**2, pairs / (pairs + 1) if pairs else float("nan"))


def as_published_tasks(forgotten: Sequence[int], classes: Sequence[int]) -> list[list[int]]:
    """Return the tasks over which the authors' script sums at each forget request.

    `forgotten` are the tasks in the order in which they are forgotten. The script's mask is right at the first forget
    request: the forgotten task. Then the mixture (p + q) / 2 overwrites the mask, and the k-th row of that mixture, as
    many positive numbers as there are classes, selects the first min(tasks, classes) tasks. (The mixture is that of the
    last task summed over before.)

    >>> as_published_tasks([2, 4], classes=[10] * 5), as_published_tasks([2, 4], classes=[2] * 5)
    ([[2], [0, 1, 2, 3, 4]], [[2], [0, 1]])
    """
    counted: list[list[int]] = []
    for task in forgotten:
        counted.append(list(range(min(len(classes), classes[counted[-1][-1]]))) if counted else [task])
    return counted


def as_published(per_task: Sequence[ArrayLike], forgotten: Sequence[int], classes: Sequence[int]) -> list[Floats]:
    """Compute one matrix per forget request as in the authors' script: summed over `as_published_tasks`.

    The sums may exceed ln 2. `per_task[forget][task]` is a `jsd_matrix`. Pass the result to `in_group` and
    `across_group`, and use `irr` with `strict=True`; `spread_as_published` is the script's standard deviation.

    >>> as_published([[[[0.1]], [[0.2]]], [[[0.3]], [[0.4]]]], forgotten=[0, 1], classes=[10, 10])
    [array([[0.1]]), array([[0.7]])]
    """
    counted = as_published_tasks(forgotten, classes)
    if len(counted) != len(per_task):
        raise ValueError(f"got matrices of {len(per_task)} forget requests and {len(counted)} forgotten tasks")
    return [np.asarray(tasks, dtype=float)[chosen].sum(axis=0) for tasks, chosen in zip(per_task, counted)]


def spread_as_published(ijsd: ArrayLike) -> float:
    """Compute the authors' standard deviation of IJSD: each pair counted twice (i, j and j, i), n - 1 as denominator.

    >>> round(spread_as_published([0.1, 0.2]), 4)
    0.0577
    """
    twice = np.repeat(np.asarray(ijsd, dtype=float), 2)
    return float(np.std(twice, ddof=1)) if len(twice) > 1 else float("nan")
