"""Every parser, given thousands of damaged inputs, returns or raises one of our errors."""

from contextlib import suppress
from itertools import islice
from pathlib import Path

import fuzzing

import clpu


def test_fuzzed_parsers_give_typed_errors(tmp_path: Path) -> None:
    found = fuzzing.targets(tmp_path)
    assert {"tree", "receipt", "keys", "npz", "csv", "png"} <= found.keys()
    for parser, sample in found.values():
        parser(sample)  # what is not damaged is read
    for _, parser, data in islice(fuzzing.cases(found, seed=5), 4000):
        with suppress(clpu.Error):
            parser(data)
