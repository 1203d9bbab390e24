"""What does it cost to forget a person, and what would it cost otherwise? The method `ridge` on 8-bit features.

    python benchmarks/ridge.py                     # 30 people, 10,000 records: forgetting one against refitting
    python benchmarks/ridge.py --features cifar10  # the same on EfficientNet-lite0's features of CIFAR-10
    python benchmarks/ridge.py --speed             # 50,000 records: learning, forgetting, solving, also in a store
    python benchmarks/ridge.py --rates             # what docs/scaling.md is computed from

Generated features are 1,280 small integers of overlapping classes. The alternatives get the same features and number of
threads: refitting scikit-learn's RidgeClassifier or LogisticRegression without the person, and subtracting the person's
part from float32 sums. All are timed in turn, so that they share whatever else the machine does; CPU seconds count
what all threads used and hardly depend on that. Bits are compared with those of an agent that never saw the person.
Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import clpu
from clpu.bases.integers import quantised
from clpu.bases.loading import SETTINGS
from clpu.bases.loading import load as load_base
from clpu.methods.ridge import Sums
from clpu.state import Records

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


def cifar_features(count: int, people: int) -> tuple[Any, Any, list[str]]:
    """The same as `generated` of CIFAR-10, as small integers; the last 2,000 are test images."""
    base = load_base("base:efficientnet-lite0", SETTINGS["base:efficientnet-lite0"]())
    data = clpu.data.load("cifar10")
    x = np.concatenate([data.train.x[:count], data.test.x[:2000]])
    features = base.features(torch.from_numpy(np.array(x)))
    y = np.concatenate([data.train.y[:count], data.test.y[:2000]]).astype(int)
    rows = quantised(features, base.scale, base.root).numpy().astype(np.float32)
    return rows[:, :, None], y, [f"p{number}" for number in np.random.default_rng(0).integers(0, people, count)]


def compare(threads: int, features: str) -> None:
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from threadpoolctl import threadpool_limits

    if features == "cifar10":
        x, y, people = cifar_features(10_000, 30)
    else:
        x, y, people = generated(12_000, 6, 30)
    (x, test_x), (y, test_y) = (np.split(both, [10_000]) for both in (x, y))
    people = people[:10_000]
    stay = np.array([person != "p7" for person in people])
    options = {**RAW, "threads": threads}
    agent = clpu.Agent("ridge", **options)
    agent.learn("1", x, y, people=people)
    agent.predict("1", test_x[:1])
    never = clpu.Agent("ridge", **options)
    never.learn("1", x[stay], y[stay], people=[person for person, stays in zip(people, stay) if stays])
    flat = np.ascontiguousarray(x[stay][:, :, 0])
    small, left = flat / 127, y[stay]
    alpha = 0.3 * float((flat**2).sum()) / len(flat)
    models = {
        "RidgeClassifier, refitted": (RidgeClassifier(alpha=alpha), flat, 1),
        "RidgeClassifier(solver='cholesky'), refitted": (RidgeClassifier(alpha=alpha, solver="cholesky"), flat, 1),
        "LogisticRegression, refitted": (LogisticRegression(), small, 127),
        "LogisticRegression(C=0.1), refitted": (LogisticRegression(C=0.1), small, 127),
        "LogisticRegression until it converges, refitted": (LogisticRegression(max_iter=10_000), small, 127),
    }
    scaled, part = (torch.from_numpy(rows[:, :, 0] / 3) for rows in (x, x[~stay]))  # floats, as a network's features
    sums = scaled.T @ scaled
    kept: list[clpu.Agent] = []

    def forget() -> None:
        kept[-1].forget(person="p7")
        kept[-1].predict("1", test_x[:1])  # the solve counts

    work: dict[str, Callable[[], Any]] = {"ridge": forget}
    work |= {name: partial(model.fit, rows, left) for name, (model, rows, _) in models.items()}
    work["float32 sums, subtracted, no solve"] = lambda: sums - part.T @ part
    wall: dict[str, list[float]] = {name: [] for name in work}
    used: dict[str, list[float]] = {name: [] for name in work}
    torch.set_num_threads(threads)
    with threadpool_limits(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 100 iterations, the default, may be too few to converge
        for number in range(9):
            kept[:] = [agent.copy()]
            for name, one in work.items():
                if "converges" in name and number:
                    continue
                start = time.process_time()
                wall[name].append(seconds(one))
                used[name].append(time.process_time() - start)
    print(f"one person of 30 ({int((~stay).sum())} of 10,000 records, {features}) forgotten, {threads} thread(s),")
    print(f"the solve counted on all sides; medians of 9 rounds, load {os.getloadavg()[0]:.0f}:")
    print("| how | seconds | ratio | CPU seconds | ratio | test accuracy | bits equal to never having had them |")
    print("|---|--:|--:|--:|--:|--:|---|")
    differing = float(((sums - part.T @ part) != scaled[stay].T @ scaled[stay]).float().mean())
    for name in work:
        times = " | ".join(
            f"{np.median(took[name]):.3f} | {np.median([a / b for a, b in zip(took[name], took['ridge'])]):.1f}"
            for took in (wall, used)
        )
        score, bits = "", f"no: {100 * differing:.0f} % of the entries differ"
        if name == "ridge":
            score = f"{100 * kept[-1].accuracy('1', test_x, test_y):.1f}"
            bits = "yes" if kept[-1].digest() == never.digest() else "NO"
        elif name in models:
            model, _, scale = models[name]
            score, bits = f"{100 * float(model.score(test_x[:, :, 0] / scale, test_y)):.1f}", "(refitted)"
        print(f"| {name} | {times} | {score} | {bits} |")


def rates() -> None:
    """CPU seconds per record of everything that a billion records would need, with one thread."""
    draws = np.random.default_rng(0)

    def per(count: int, work: Callable[[], Any]) -> float:
        work()
        start = time.process_time()
        work()
        return (time.process_time() - start) / count

    images = torch.from_numpy(draws.integers(0, 256, (200, 3, 32, 32), dtype=np.uint8))
    texts = [" ".join(draws.choice(["lorem", "ipsum", "forget", "person", "42", "exact"], 60)) for _ in range(100)]
    rows = draws.integers(0, 128, (65_536, FEATURES)).astype(np.int8)
    y = draws.integers(0, 100, len(rows)).astype(np.int32)
    records = Records(rows, y, tuple(range(100)))
    leaves = [Records(rows[i : i + 100], y[i : i + 100], tuple(range(100))) for i in range(0, 20_000, 100)]
    print(f"| what, one thread, load {os.getloadavg()[0]:.0f} | microseconds of CPU time per record |\n|---|--:|")

    def say(what: str, each: float) -> None:
        print(f"| {what} | {1e6 * each:,.1f} |", flush=True)

    torch.set_num_threads(1)
    lite0 = load_base("base:efficientnet-lite0", SETTINGS["base:efficientnet-lite0"]())
    say("features of an image of 32 pixels, EfficientNet-lite0 at 128", per(200, lambda: lite0.features(images)))
    minilm = load_base("base:minilm", SETTINGS["base:minilm"]())

    def tokens() -> torch.Tensor:
        return torch.from_numpy(minilm.encoded(texts))

    say(
        "features of a text of 60 words, MiniLM",
        per(100, lambda: minilm.features(tokens())),
    )
    numbers = torch.from_numpy(draws.normal(size=(4096, 20)))
    drawn = load_base("base:random", SETTINGS["base:random"]())
    say("features of a table of 20 columns, base:random", per(4096, lambda: drawn.features(numbers)))
    say("a leaf of 100 records: sorted and hashed", per(20_000, lambda: [one.to_leaf().sha256 for one in leaves]))
    say("sums over 65,536 rows of 1,280", per(len(rows), lambda: Sums.of([records], FEATURES, records.labels)))
    say("sums over leaves of 100 rows", per(20_000, lambda: Sums.of(leaves, FEATURES, records.labels)))
    sums = Sums.of([records], FEATURES, records.labels)
    changes = range(20)
    say(
        "100 records taken out of the sums, per person",
        per(20, lambda: [sums.changed(leaves[:1], -1) for _ in changes]),
    )
    say("solving for 100 labels, per change", per(20, lambda: [sums.weights(0.3) for _ in changes]))
    in_a_store(1000)


def in_a_store(people: int) -> None:
    """What a store of so many people with 100 records each takes."""
    count = 100 * people
    x, y, _ = generated(count, 100, 1)
    ids = [f"p{number // 100}" for number in range(count)]
    opened: list[Any] = []
    leaving = iter(dict.fromkeys(ids))

    def say(what: str, work: Callable[[], Any], number: int, times: int = 1) -> None:
        wall, used = [], []
        for _ in range(times):
            start = time.process_time()
            wall.append(seconds(work))
            used.append(time.process_time() - start)
        print(f"| {what} | {1000 * np.median(wall) / number:.2f} | {1000 * np.median(used) / number:.2f} |", flush=True)

    print(f"\n| a store of {people:,} people, 100 records each, {FEATURES:,} features | milliseconds | of CPU time |")
    print("|---|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "store"
        with clpu.store.create(place, "ridge", **{**RAW, "threads": 1}) as agent:
            say("learn, per person", lambda: agent.learn("1", x, y, people=ids), people)
        files = [path for path in place.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        say("open, per person", lambda: opened.append(clpu.open(place)), people)
        with opened[0] as agent:
            say("sums of all and solve, per person", lambda: agent.predict("1", x[:1]), people)
            say("one person forgotten", lambda: agent.forget(person=next(leaving)), 1, times=9)
            say("the next answer", lambda: agent.predict("1", x[:1]), 1)
    print(f"{size / count:,.1f} bytes per record, {len(files) / people:.2f} files per person")


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
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--features", choices=("generated", "cifar10"), default="generated")
    given = parser.parse_args()
    if given.rates:
        rates()
    elif given.speed:
        torch.set_num_threads(2)
        speed()
    else:
        compare(given.threads, given.features)
