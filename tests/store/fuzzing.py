"""Mutated files for every parser of the store: a few thousand in the tests, without end by `make fuzz`.

    python tests/store/fuzzing.py [PARSER ...] [--seed N]

A parser may return or raise `clpu.Error`; anything else is a finding, and its input is saved in the current folder.
"""

from __future__ import annotations

import argparse
import io
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import clpu
from clpu.errors import BadState
from clpu.state import Leaf, Records, State, Task
from clpu.store import rotation
from clpu.store.commands import forgetting
from clpu.store.contents import Part, assemble, check_whole, parts_of
from clpu.store.data_files import read
from clpu.store.forgetting import Order
from clpu.store.format import About, to_json
from clpu.store.journal import Journal, entries_of
from clpu.store.keyring import Keyring, Secrets
from clpu.store.plan import Intent, read_root, root_bytes
from clpu.store.protection import Unlock
from clpu.store.receipt import DOES_NOT_PROVE, PROVES, Receipt
from clpu.store.sealing import seal_always

Target = tuple[Callable[[bytes], Any], bytes]
FACTS = {"labels": [0, 1], "inputs": {"shape": [4], "integer": False}, "steps": 3}
ABOUT = {"method": "m", "network": "n", "forgets": "tasks", "settings": {}, "seeds": [0]}
TIME = "2026-01-01T00:00:00+00:00"


def targets(folder: Path) -> dict[str, Target]:
    """Each parser with a good input."""
    secrets = Secrets.new()
    leaf = Leaf({"a": _tensor(), "b": _tensor()})
    part = Part(("task", None), "T", FACTS, leaf).to_bytes()
    keyring = Keyring(folder, here=True)
    keyring.put_secrets(secrets, Unlock())

    def keys(data: bytes) -> None:
        (folder / "master.json").write_bytes(data)
        keyring.secrets(secrets.identity, Unlock())

    def read_part(data: bytes) -> None:
        found = Part.from_bytes(data, "a file").leaf
        if found is not None:
            _ = found.specs

    task, records = (part_of_records(people) for people in (False, True))

    def read_records(data: bytes) -> None:
        with suppress(BadState):  # what a method would say, which looks at it next
            state = assemble(ABOUT, [("a", Part.from_bytes(task, "a")), ("b", Part.from_bytes(data, "b"))])
            check_whole(state)
            state.without(person="ada")

    receipt = Receipt.sign(secrets.signing, receipt_facts())
    Journal(folder / "journal", secrets.signing).append([receipt])
    found: dict[str, Target] = {
        "about": (About.from_bytes, About(secrets.identity, True).to_bytes()),
        "tree": (State.from_bytes, State(ABOUT).with_task("task", Task("T", FACTS, leaf)).to_bytes()),
        "part": (read_part, part),
        "root": (
            lambda data: read_root(seal_always(secrets.permanent[-1], "root", data), secrets),
            b'{"about": {"method": "m"}, "permanent": "00"}',
        ),
        "sealed root": (lambda data: read_root(data, secrets), root_bytes(ABOUT, (), secrets)),
        "intent": (lambda data: Intent.unseal(secrets, data), Intent(add=("0" * 32,)).seal(secrets)),
        "keys": (keys, (folder / "master.json").read_bytes()),
        "secrets": (_typed(Secrets.from_bytes), secrets.to_bytes()),
        "receipt": (lambda data: Receipt.from_json(_text(data)).verify(), receipt.to_json().encode()),
        "records": (read_records, records),
        "batch": (_lines_of(folder / "batch"), b'one\n{"task": "two", "labels": [1, "x"], "id": "7", "reason": "r"}\n'),
        "recovery": (_recovery_of(folder / "recovery"), to_json(recovery(secrets))),
        "journal": (lambda data: entries_of(_text(data)), (folder / "journal").read_bytes()),
    }
    np.savez(folder / "good.npz", x=np.ones((4, 3), np.float32), y=np.arange(4))
    (folder / "good.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    for kind in ("npz", "csv"):
        found[kind] = (_reader(folder / f"fuzzed.{kind}"), (folder / f"good.{kind}").read_bytes())
    from PIL import Image

    (folder / "images" / "a").mkdir(parents=True)
    for kind in ("png", "jpeg", "bmp", "gif", "tiff", "webp", "ppm"):
        content = io.BytesIO()
        Image.new("RGB", (8, 8), (1, 2, 3)).save(content, kind)
        found[kind] = (_reader(folder / "images" / "a" / "1.png", folder / "images"), content.getvalue())
    return found


def part_of_records(people: bool) -> bytes:
    """A task with records, as it is stored: its own part, or that of its records."""
    rows = Records(np.ones((3, 2), np.int8), np.array([0, 1, 1]), ("ham", "spam"), ("1", "2", "3"))
    whole = Task("T", FACTS, None, {("ada", "bob"): rows.to_leaf()})
    return list(parts_of("task", whole))[people].to_bytes()


def recovery(secrets: Secrets) -> dict[str, Any]:
    about = {"format": rotation.FORMAT, "version": rotation.VERSION, "identity": secrets.identity}
    return {**about, "names": secrets.names.hex(), "permanent": secrets.permanent[-1].hex()}


def _lines_of(path: Path) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> None:
        path.write_bytes(data)
        for line in forgetting._lines(path):
            Order(**line)

    return parse


def _recovery_of(path: Path) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> None:
        path.write_bytes(data)
        rotation._read_recovery(path)

    return parse


def receipt_facts() -> dict[str, Any]:
    empty = dict.fromkeys(("reason", "requester", "shared_before", "shared_after", "digest_before", "digest_after"))
    lists: dict[str, Any] = {"touched": ["0" * 64], "left": [], "keys_destroyed": []}
    said = {"request": "1", "received": TIME, "done": TIME, "scope": {"task": "t"}, "method": "m", "forgets": "tasks"}
    more = {"exact": True, "salt": "0" * 64, "machine": {}, "proves": [*PROVES], "does_not_prove": [*DOES_NOT_PROVE]}
    return {**empty, **lists, **said, **more}


def _tensor() -> Any:
    import torch

    return torch.arange(6, dtype=torch.float32).reshape(2, 3)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _typed(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A parser that says `ValueError`, which its caller makes ours."""

    def parsed(data: bytes) -> None:
        with suppress(ValueError, RecursionError):
            parse(data)

    return parsed


def _reader(path: Path, folder: Path | None = None) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> None:
        path.write_bytes(data)
        read(folder or path, limit=1 << 20)

    return parse


def mutated(content: bytes, luck: random.Random) -> bytes:
    """Some bytes changed, cut, doubled or moved."""
    data = bytearray(content)
    for _ in range(luck.randint(1, 4)):
        at = luck.randrange(len(data) + 1)
        end = min(len(data), at + luck.choice([1, 2, 8, 64]))
        kind = luck.randrange(4)
        if kind == 0:
            data[at:end] = luck.randbytes(end - at)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end]
        else:
            data[at:end] = luck.choice([b"0", b"-1", b"null", b"[]", b"1e9", b'"', b"{", b"999999999999"])
    return bytes(data)


def cases(found: dict[str, Target], seed: int) -> Iterator[tuple[str, Callable[[bytes], Any], bytes]]:
    """Mutated inputs without end, the parsers in turn."""
    luck = random.Random(seed)
    for name, (parser, sample) in itertools.cycle(found.items()):
        yield name, parser, mutated(sample, luck)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parser", nargs="*")
    options.add_argument("--seed", type=int, default=random.randrange(2**32))
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o700)
        found = targets(Path(folder))
        wanted = {name: found[name] for name in chosen.parser or found}
        print(f"fuzzing {', '.join(wanted)} with seed {chosen.seed}; Ctrl-C ends it")
        for number, (name, parser, data) in enumerate(cases(wanted, chosen.seed), 1):
            try:
                parser(data)
            except clpu.Error:
                pass
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    break
                Path(f"finding-{name}-{number}").write_bytes(data)
                print(f"{name}: {error!r:.200}; the input is in finding-{name}-{number}")
            if number % 10_000 == 0:
                print(f"{number:,} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
