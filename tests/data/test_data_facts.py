"""Known facts about the real data sets, for those that are cached: `make test-data`."""

import hashlib
import struct
import subprocess
import sys

import numpy as np
import pytest

from clpu.data import Dataset, dataset_spec, load, tasks
from clpu.data.cache import is_cached
from clpu.data.fetch import recheck

pytestmark = pytest.mark.data


def real(name: str) -> Dataset:
    if not dataset_spec(name).embedded and not is_cached(dataset_spec(name)):
        pytest.skip(f"{name} is not in the cache; run: clpu data get {name}")
    return load(name)


@pytest.mark.parametrize("name", ["mnist", "fashion", "cifar10", "cifar100", "digits", "hapt", "spamassassin"])
def test_every_byte_has_its_pinned_checksum(name: str) -> None:
    real(name)
    recheck(name)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        (
            "mnist",
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
        ("fashion", [6000] * 10, [1000] * 10),
        ("cifar10", [5000] * 10, [1000] * 10),
        ("cifar100", [500] * 100, [100] * 100),
    ],
)
def test_classes_have_their_known_counts(name: str, train: list[int], test: list[int]) -> None:
    data = real(name)
    assert np.bincount(data.train.y).tolist() == train
    assert np.bincount(data.test.y).tolist() == test


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("mnist", [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]),
        ("fashion", [9, 0, 0, 3, 0, 2, 7, 2, 5, 5], [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]),
        ("cifar10", [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]),
        ("cifar100", [19, 29, 0, 11, 1, 86, 90, 28, 23, 31], [49, 33, 72, 51, 71, 92, 15, 14, 23, 0]),
    ],
)
def test_the_first_labels_are_the_known_ones(name: str, train: list[int], test: list[int]) -> None:
    data = real(name)
    assert data.train.y[:10].tolist() == train
    assert data.test.y[:10].tolist() == test


@pytest.mark.parametrize("name", ["mnist", "fashion"])
def test_the_official_idx_files_can_be_rebuilt_from_the_arrays(name: str) -> None:
    data = real(name)
    files = dataset_spec(name).layouts[0].files
    made = [
        content
        for split in (data.train, data.test)
        for content in (
            struct.pack(">HBB3I", 0, 8, 3, *split.x.shape) + split.x.tobytes(),
            struct.pack(">HBBI", 0, 8, 1, len(split)) + split.y.astype(np.uint8).tobytes(),
        )
    ]
    assert [hashlib.sha256(content).hexdigest() for content in made] == [file.sha256 for file in files]


def test_thirty_people_did_six_activities_in_each_of_their_sessions() -> None:
    data = real("hapt")
    for split in (data.train, data.test):
        assert split.people is not None
        pairs = set(zip(split.people.tolist(), split.y.tolist(), strict=True))
        assert pairs == {(person, activity) for person in range(1, 31) for activity in range(6)}
    lying = data.train.x[data.train.y == 5].astype(float).mean((0, 2)) / data.unit
    standing = data.train.x[data.train.y == 4].astype(float).mean((0, 2)) / data.unit
    assert (abs(standing[0]) > 0.9, abs(lying[0]) < 0.4) == (True, True)  # gravity, along the body


def test_the_corpus_has_its_known_mails() -> None:
    data = real("spamassassin")
    labels = np.concatenate([data.train.y, data.test.y])
    assert np.bincount(labels).tolist() == [2500 + 1400 + 250, 500 + 1396]


# Which of the 20 coarse classes each of CIFAR-100's fine classes belongs to, in alphabetical order of both.
COARSE = (
    "4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5 5 19 8"
    " 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13 16 19"
    " 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"
)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_official_binary_files_can_be_rebuilt_from_the_arrays(name: str) -> None:
    data = real(name)
    layout = dataset_spec(name).layouts[0]
    for split, files in ((data.train, layout.train), (data.test, layout.test)):
        heads = [split.y] if name == "cifar10" else [np.array(COARSE.split(), int)[split.y], split.y]
        records = np.concatenate([np.stack(heads, 1).astype(np.uint8), split.x.reshape(len(split), -1)], axis=1)
        for file, part in zip(files, np.split(records, len(files)), strict=True):
            assert hashlib.sha256(part.tobytes()).hexdigest() == file.sha256


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_normalisation_constants_are_those_of_the_training_images(name: str) -> None:
    data = real(name)
    channels = data.train.x.transpose(1, 0, 2, 3).reshape(3, -1)
    assert data.mean is not None
    assert data.std is not None
    for channel, mean, std in zip(channels, data.mean, data.std, strict=True):
        assert channel.mean() / 255 == pytest.approx(mean, abs=1e-3)
        assert channel.std() / 255 == pytest.approx(std, abs=1e-3)


def test_logistic_regression_on_mnist_reaches_what_everybody_knows() -> None:
    import torch

    data = real("mnist")
    x, test = (torch.tensor(split.x.reshape(-1, 784)) / 255 for split in (data.train, data.test))
    y = torch.tensor(data.train.y)
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.zeros(784, 10, requires_grad=True), torch.zeros(10, requires_grad=True)
    optimiser = torch.optim.SGD([weight, bias], lr=0.1)
    for _ in range(10):
        for rows in torch.randperm(len(x), generator=generator).split(100):
            loss = torch.nn.functional.cross_entropy(x[rows] @ weight + bias, y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    accuracy = ((test @ weight + bias).argmax(1).numpy() == data.test.y).mean()
    print(f"logistic regression on MNIST: {accuracy:.2%}")
    assert 0.915 < accuracy < 0.93


@pytest.mark.parametrize(
    ("name", "low", "high"), [("mnist", 0.955, 0.975), ("fashion", 0.82, 0.86), ("cifar10", 0.3, 0.4)]
)
def test_the_nearest_neighbour_is_as_right_as_everybody_knows(name: str, low: float, high: float) -> None:
    data = real(name)
    count = 1000
    train = data.train.x.reshape(len(data.train), -1).astype(np.float32)
    test = data.test.x[:count].reshape(count, -1).astype(np.float32)
    distance = (train**2).sum(1) - 2 * test @ train.T
    accuracy = (data.train.y[distance.argmin(1)] == data.test.y[:count]).mean()
    print(f"1-nearest neighbour on {name}: {accuracy:.2%}")
    assert low < accuracy < high


def test_rotated_mnist_has_all_images_in_each_task() -> None:
    real("mnist")
    assert [len(task.train) for task in tasks("rot-mnist")] == [60_000] * 5


def test_loading_cifar100_needs_no_more_memory_than_twice_its_size() -> None:
    real("cifar100")
    # All pages are touched, so that mapped memory counts as well.
    script = (
        "import numpy\n"
        "def peak():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return int(next(line for line in lines if line.startswith('VmHWM')).split()[1]) * 1024\n"
        "import clpu.data.loading as loading\n"
        "before = peak()\n"
        "data = loading.load('cifar100')\n"
        "sums = [split.x.max() + split.y.max() for split in (data.train, data.test)]\n"
        "print(peak() - before)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    print(f"loading CIFAR-100: {int(ended.stdout) / 1e6:.0f} MB")
    assert int(ended.stdout) < 2 * dataset_spec("cifar100").bytes
