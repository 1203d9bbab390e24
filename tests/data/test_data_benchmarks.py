"""Benchmarks: what each kind does to the images, and what its randomness depends on."""

import hashlib
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

import clpu.data
from clpu.data import BENCHMARKS, load, tasks
from clpu.data.benchmarks import _rotation, rotation_angle
from clpu.data.errors import NotCached, UnknownBenchmark
from clpu.errors import BadSetting, Error


@given(st.integers(4, 32), st.integers(4, 32), st.floats(0, 180), st.integers(0, 2**32 - 1))
def test_rotating_pixel_numbers_equals_rotating_the_image_itself(
    height: int, width: int, angle: float, seed: int
) -> None:
    image = np.random.default_rng(seed).integers(1, 256, (height, width), dtype=np.uint8)
    order, outside = _rotation(height, width, angle)
    ours = np.where(outside, 0, image.reshape(-1)[order]).reshape(height, width)
    np.testing.assert_array_equal(ours, np.asarray(Image.fromarray(image).rotate(angle)))


def test_every_image_of_a_rotated_task_is_the_librarys_rotation_of_it() -> None:
    digits = load("digits")
    for number, task in enumerate(tasks("rot-digits", seed=3), start=1):
        angle = rotation_angle("rot-digits", 3, number)
        assert (number - 1) * 9 <= angle < number * 9
        for ours, original in ((task.train, digits.train), (task.test, digits.test)):
            each = [np.asarray(Image.fromarray(image).rotate(angle)) for image in original.x]
            np.testing.assert_array_equal(ours.x, np.stack(each))
            np.testing.assert_array_equal(ours.y, original.y)


def test_a_permuted_task_moves_the_pixels_of_all_its_images_alike() -> None:
    digits = load("digits")
    for task in tasks("perm-digits"):
        for ours, original in ((task.train, digits.train), (task.test, digits.test)):
            assert ours.x.shape == original.x.shape
            np.testing.assert_array_equal(np.sort(ours.x.reshape(-1, 64)), np.sort(original.x.reshape(-1, 64)))
    # Undo it with the order found from the training images alone; then the test images must come out right.
    task = tasks("perm-digits")[0]
    columns = {column.tobytes(): place for place, column in enumerate(task.train.x.reshape(-1, 64).T)}
    for place, column in enumerate(digits.train.x.reshape(-1, 64).T):
        if column.any():  # some border pixels are empty in all images
            np.testing.assert_array_equal(
                task.test.x.reshape(-1, 64)[:, columns[column.tobytes()]],
                digits.test.x.reshape(-1, 64)[:, place],
            )


def test_permutations_are_uniform_over_where_a_pixel_goes() -> None:
    # Where the brightest pixel goes, over many seeds: chi-squared with 63 degrees of freedom.
    x = load("digits").train.x.reshape(-1, 64)
    brightest = x[:, int(x.sum(0).argmax())]
    seen = np.zeros(64)
    for seed in range(8):
        for task in tasks("perm-digits", tasks=80, seed=seed):
            seen[(task.train.x.reshape(-1, 64) == brightest[:, None]).all(0).argmax()] += 1
    expected = seen.sum() / 64
    assert ((seen - expected) ** 2 / expected).sum() < 63 + 5 * math.sqrt(2 * 63)


@pytest.mark.parametrize("benchmark", ["perm-digits", "rot-digits"])
def test_more_tasks_leave_the_earlier_ones_as_they_are(benchmark: str) -> None:
    for one, other in zip(tasks(benchmark, tasks=2), tasks(benchmark, tasks=7), strict=False):
        assert (one.name, one.detail) == (other.name, other.detail)
        np.testing.assert_array_equal(one.train.x, other.train.x)


@pytest.mark.parametrize("benchmark", ["perm-digits", "rot-digits"])
def test_the_same_seed_gives_the_same_tasks_and_a_different_seed_different_ones(benchmark: str) -> None:
    first, same, other = (tasks(benchmark, seed=seed) for seed in (5, 5, 6))
    for one, two, three in zip(first, same, other, strict=True):
        np.testing.assert_array_equal(one.train.x, two.train.x)
        assert one.name == three.name
    # Eight by eight pixels do not notice every small difference of angles, so not each task differs.
    assert any((one.train.x != three.train.x).any() for one, three in zip(first, other, strict=True))


@pytest.mark.parametrize("benchmark", ["perm-digits", "rot-digits"])
def test_benchmarks_ignore_the_global_generators(benchmark: str) -> None:
    np.random.seed(1)
    first = tasks(benchmark)
    np.random.seed(2)
    for one, two in zip(first, tasks(benchmark), strict=True):
        np.testing.assert_array_equal(one.train.x, two.train.x)


def test_benchmarks_stay_the_same_across_versions() -> None:
    angles = [round(rotation_angle("rot-mnist", 0, number), 6) for number in range(1, 6)]
    assert angles == [6.92284, 16.37428, 20.854329, 27.703642, 43.307335]
    order = np.argsort(tasks("perm-digits", tasks=1)[0].train.x.reshape(-1, 64).sum(0), kind="stable")
    assert order[-5:].tolist() == [3, 53, 10, 29, 38]


def test_a_split_benchmark_divides_the_classes_and_keeps_every_image_in_order() -> None:
    digits = load("digits")
    made = tasks("split-digits")
    assert [task.name for task in made] == ["1", "2", "3", "4", "5"]
    for split in ("train", "test"):
        original = getattr(digits, split)
        for task in made:
            ours = getattr(task, split)
            wanted = np.isin(original.y, task.classes)
            np.testing.assert_array_equal(ours.x, original.x[wanted])
            np.testing.assert_array_equal(ours.y, original.y[wanted])
    assert sum(len(task.train) for task in made) == len(digits.train)
    assert [task.classes for task in tasks("split-digits", tasks=2)] == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]


@pytest.mark.parametrize(
    ("benchmark", "count"), [("split-digits", 3), ("split-digits", 10), ("rot-digits", 21), ("perm-digits", 0)]
)
def test_an_impossible_number_of_tasks_is_refused(benchmark: str, count: int) -> None:
    with pytest.raises(BadSetting, match=str(count)):
        tasks(benchmark, tasks=count)


def test_an_unknown_benchmark_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(
        UnknownBenchmark, match=r"there is no benchmark 'spin-mnist'; known: .*rot-mnist.*split-cifar100"
    ):
        tasks("spin-mnist")
    assert issubclass(UnknownBenchmark, Error)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("benchmark", [name for name in BENCHMARKS if not name.endswith("digits")])
def test_a_benchmark_on_data_that_are_not_cached_names_the_command_that_downloads_them(benchmark: str) -> None:
    with pytest.raises(NotCached, match=f"clpu data get {benchmark.partition('-')[2]}"):
        tasks(benchmark)


def test_the_package_offers_what_it_promises() -> None:
    for name in clpu.data.__all__:
        assert getattr(clpu.data, name) is not None
    assert clpu.data.names()[0] == "mnist"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = clpu.data.nothing


def test_digits_are_scaled_and_divided_class_by_class() -> None:
    digits = load("digits")
    assert digits.train.x.max() == 255
    assert len(np.unique(digits.train.x)) == 17
    assert np.bincount(digits.test.y).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]


def test_the_digits_are_those_of_scikit_learn() -> None:
    digits, (x, y) = load("digits"), load_digits(return_X_y=True)
    ours = np.concatenate([split.x.reshape(-1, 64) for split in (digits.train, digits.test)])
    labels = np.concatenate([digits.train.y, digits.test.y])
    expected = np.column_stack([np.floor(x * 255 / 16 + 0.5), y])
    np.testing.assert_array_equal(*(sorted(map(tuple, each)) for each in (np.column_stack([ours, labels]), expected)))


def test_the_shipped_file_is_the_one_whose_source_and_licence_are_stated() -> None:
    folder = Path(clpu.data.__file__).parent
    stated = (folder / "digits-source.txt").read_text()
    assert f"SHA-256 {hashlib.sha256((folder / 'digits.csv.gz').read_bytes()).hexdigest()}\n" in stated
    assert "CC BY 4.0" in stated


def test_the_default_benchmark_needs_no_optional_package() -> None:
    code = """
import sys
for name in ("PIL", "sklearn", "scipy", "ray"):
    sys.modules[name] = None
import clpu.data
assert len(clpu.data.tasks("rot-digits")) == 5
"""
    subprocess.run([sys.executable, "-c", code], check=True)
