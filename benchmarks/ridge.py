"""What does it cost to forget a person, and what would it cost otherwise? The method `ridge` on 8-bit features.

    python benchmarks/ridge.py             # 30 people, 10,000 records: forgetting one against the obvious alternatives
    python benchmarks/ridge.py --speed     # 50,000 records: learning, forgetting, solving, also in a store

Features are generated: 1,280 small integers, overlapping classes. The alternatives get the same features: refitting
scikit-learn's RidgeClassifier or LogisticRegression without the person, and subtracting the person's part from float32
sums. Bits are compared with those of an agent that never saw the person. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import clpu

FEATURES = 1280
RAW: dict[str, Any] = {"network": "base:raw", "gains": (1.0,), "threads": 2}


def generated(count: int, labels: int, people: int) -> tuple[Any, Any, list[str]]:
    """Integers from -127 to 127 around one centre per label, and the person of each record."""
    draws = np.random.default_rng(0)
    centres = draws.normal(scale=1.5, size=(labels, FEATURES))
    y = draws.integers(0, labels, count)
    x = np.clip(np.rint(centres[y] + draws.normal(scale=25, size=(count, FEATURES))), -127, 127).astype(np.float32)
    return x[:, :, None], y, [f"p{number}" for number in draws.integers(0, people, count)]


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(work: Callable[[], Any], before: Callable[[], Any] = lambda: None, times: int = 5) -> float:
    """The median time of some work; `before` is done before each and not counted."""
    found = []
    for _ in range(times):
        before()
        found.append(seconds(work))
    return float(np.median(found))


def compare() -> None:
    from sklearn.linear_model import LogisticRegression, RidgeClassifier

    x, y, people = generated(10_000, 6, 30)
    test_x, test_y, _ = generated(12_000, 6, 30)
    test_x, test_y = test_x[10_000:], test_y[10_000:]
    stay = np.array([person != "p7" for person in people])
    agent = clpu.Agent("ridge", **RAW)
    agent.learn("1", x, y, people=people)
    agent.predict("1", test_x[:1])
    kept: list[clpu.Agent] = []

    def forget() -> None:
        kept[-1].forget(person="p7")
        kept[-1].predict("1", test_x[:1])  # the solve counts

    ours = median(forget, lambda: kept.append(agent.copy()))
    never = clpu.Agent("ridge", **RAW)
    never.learn("1", x[stay], y[stay], people=[person for person, stays in zip(people, stay) if stays])
    flat, test_flat = x[:, :, 0], test_x[:, :, 0]
    alpha = 0.3 * float((flat[stay] ** 2).sum()) / int(stay.sum())
    ridge, logistic = RidgeClassifier(alpha=alpha), LogisticRegression(max_iter=100)
    refit = median(lambda: ridge.fit(flat[stay], y[stay]), times=3)
    slow = seconds(lambda: logistic.fit(flat[stay] / 127, y[stay]))
    part = torch.from_numpy(flat[~stay] / 3)  # floats that are not integers, as features of a network are
    scaled = torch.from_numpy(flat / 3)
    sums = scaled.T @ scaled
    subtract = median(lambda: sums - part.T @ part)
    left = torch.from_numpy(flat[stay] / 3)
    differing = float(((sums - part.T @ part) != left.T @ left).float().mean())
    print(f"one person of 30 ({int((~stay).sum())} of 10,000 records) forgotten, the solve counted on all sides:")
    print("| how | seconds | ratio | test accuracy | bits equal to never having had them |")
    print("|---|--:|--:|--:|---|")
    same = "yes" if kept[-1].digest() == never.digest() else "NO"
    print(f"| ridge | {ours:.3f} | 1 | {100 * kept[-1].accuracy('1', test_x, test_y):.1f} | {same} |")
    for name, model, took, scale in (
        ("RidgeClassifier, refitted", ridge, refit, 1),
        ("LogisticRegression, refitted", logistic, slow, 127),
    ):
        score = 100 * float(model.score(test_flat / scale, test_y))
        print(f"| {name} | {took:.3f} | {took / ours:.1f} | {score:.1f} | (refitted) |")
    unequal = f"no: {100 * differing:.0f} % of the entries differ"
    print(f"| float32 sums, subtracted, no solve | {subtract:.3f} | {subtract / ours:.1f} | | {unequal} |")


def speed() -> None:
    x, y, people = generated(50_000, 100, 100)
    agent = clpu.Agent("ridge", **RAW)
    copies: list[clpu.Agent] = []

    def say(what: str, took: float) -> None:
        print(f"| {what} | {took:.3f} |", flush=True)

    def fresh() -> None:
        copies.append(agent.copy())

    print("| what | seconds |\n|---|--:|")
    about: dict[str, Any] = {"people": people, "records": range(len(y))}
    say("learn 50,000 × 1,280 of 100 people", seconds(lambda: agent.learn("1", x, y, **about)))
    say("sums and solve for 100 labels, when first asked", seconds(lambda: agent.predict("1", x[:1])))
    say("one record forgotten", median(lambda: copies[-1].forget("1", records=[17]), fresh))
    say("one person of about 500 records forgotten", median(lambda: copies[-1].forget(person="p7"), fresh))
    say("the solve for 100 labels, when next asked", seconds(lambda: copies[-1].predict("1", x[:1])))
    everybody = agent.copy()
    say("100 people, one by one", seconds(lambda: [everybody.forget(person=f"p{n}") for n in range(100)]))
    with (
        tempfile.TemporaryDirectory() as folder,
        clpu.store.create(Path(folder) / "store", "ridge", **RAW) as durable,
    ):
        say("learn, in a store", seconds(lambda: durable.learn("1", x, y, **about)))
        say("one person forgotten, in a store", seconds(lambda: durable.forget(person="p7")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true")
    torch.set_num_threads(2)
    speed() if parser.parse_args().speed else compare()
