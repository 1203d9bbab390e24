"""Making a store, cloning one, and adopting a folder that replaces one; none of it needs torch."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clpu.errors import BadKeys, BadRequest, BadStore, Error
from clpu.io import sync_folder
from clpu.store.contents import check_about
from clpu.store.files import PART, Files, failures, make_folders
from clpu.store.folder import Access
from clpu.store.format import (
    ABOUT,
    HEAD,
    KEYS,
    LEAVES,
    MASTER,
    MAX_JSON_BYTES,
    OLD_MANIFEST,
    PLACE,
    ROOT,
    About,
    path_of,
)
from clpu.store.keyring import Keyring, Secrets, remove_empty
from clpu.store.plan import root_bytes
from clpu.store.store import Store

PathLike = str | os.PathLike[str]
#: What an interrupted `init` leaves.
LEFT = (KEYS, HEAD, ROOT, HEAD + PART, ROOT + PART, ABOUT + PART)


def make_store(path: PathLike, about: Mapping[str, Any], access: Access | None = None) -> None:
    """Make a store of an agent that has learned nothing, in a new or an empty folder.

    Nothing is left behind if that is refused, and of two processes that try at the same time one is refused.
    """
    access = access or Access()
    check_about(about)
    folder = Path(path)
    keys = None if access.keys is None else Path(access.keys)
    _refuse_nested(folder)
    if keys is not None:
        _refuse_bad_place(folder, keys)
    master = Secrets.new()
    root = root_bytes(about, (), master)
    if len(root) > MAX_JSON_BYTES:
        raise BadStore(f"the description of the agent takes {len(root)} bytes; the limit is {MAX_JSON_BYTES}")
    made: list[Path] = []
    with failures(folder, "made"):
        try:
            make_folders(folder, made)
            files = Files(folder)
            try:
                files.lock(access.wait)
                if files.moved():
                    raise BadStore(f"{folder} was replaced by another process; try again")
                _refuse_occupied(files, folder)
                make_folders(keys or folder / KEYS, made)
                keyring = Keyring(keys or folder / KEYS, here=keys is None)
                try:
                    keyring.files.lock(access.wait)
                    _refuse_other_keys(keyring)
                    keyring.put_secrets(master, access.unlock)
                    keyring.put_place(files.place)
                    keyring.files.tidy("")
                    keyring.files.settle()
                finally:
                    keyring.close()
                files.put(HEAD, os.urandom(32))
                files.put(ROOT, root)
                files.tidy("")
                files.settle()
                files.put(ABOUT, About(master.identity, keys is None).to_bytes())
                files.settle()
            finally:
                files.close()
        except (Error, OSError):
            for made_folder in sorted(made, key=lambda place: -len(place.parts)):
                with suppress(OSError):
                    made_folder.rmdir()
            raise


def _refuse_nested(folder: Path) -> None:
    for parent in filter(lambda parent: (parent / ABOUT).is_file(), folder.resolve().parents):
        with suppress(OSError, BadStore):
            About.from_bytes((parent / ABOUT).read_bytes())
            raise BadRequest(f"{folder} is inside the store {parent}; choose a different path")


def _refuse_bad_place(folder: Path, keys: Path) -> None:
    place, store = keys.resolve(), folder.resolve()
    if store in (place, *place.parents):
        raise BadKeys(
            f"{keys} is inside the store; leave --keys out to keep the keys there, or choose a different path"
        )
    if place in store.parents:
        raise BadKeys(f"{folder} is inside the keys folder {keys}; choose a different path for one of them")
    if place.exists() and not place.is_dir():
        raise BadKeys(f"{keys} is not a folder; the keys of a store need a separate folder")
    if not place.parent.is_dir():
        raise BadKeys(f"there is no folder {place.parent} for the keys")


def _refuse_occupied(files: Files, folder: Path, left: Collection[str] = LEFT) -> None:
    names = set(files.names())
    if names & {ABOUT, OLD_MANIFEST}:
        raise BadStore(f"there is already a store at {folder}; forget tasks in it, or choose a different folder")
    if names.difference(left):
        raise BadStore(f"{folder} is not empty; choose a new or an empty folder")


def _refuse_other_keys(keyring: Keyring) -> None:
    """An interrupted `init` leaves master keys and no others; anything else may be all that is left of a store."""
    names = set(keyring.files.names())
    own = {MASTER, PLACE, MASTER + PART, PLACE + PART}
    if names - own or (names and not keyring.here):
        raise BadKeys(
            f"{keyring.files.path} is not empty; a keys folder belongs to one store, so choose a new or an empty folder"
        )


def clone(source: PathLike, target: PathLike, access: Access | None = None, new: Access | None = None) -> int:
    """Make a new store with new keys out of a store, a copy or a backup of one; returns the number of its tasks.

    What the source's keys cannot open any more, because it was forgotten since, is not in it. The new store is there
    when it is complete: it is made beside its place, and a folder that is renamed keeps its inode, so its keys fit.
    """
    place = Path(target).absolute()
    with Store(source, access, write=False) as opened:
        state = opened.load()
    if place.exists():
        with failures(place, "made"), closing(Files(place)) as files:
            _refuse_occupied(files, place, ())
    if new is not None and new.keys is not None:
        _refuse_bad_place(place, Path(new.keys))
    part = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        make_store(part, state.about, new)
        with Store(part, new, write=True) as made:
            made.load()
            made.commit(state)
        with failures(place, "made"):
            part.rename(place)
            sync_folder(place.parent)
    except (Error, OSError):
        shutil.rmtree(part, ignore_errors=True)
        raise
    return len(state.tasks)


@dataclass(frozen=True)
class Adopted:
    """The parts that an adoption dropped: files without their keys (forgotten since), and keys without their files."""

    files: int
    keys: int


def adopt(path: PathLike, access: Access | None = None) -> Adopted:
    """Make this folder the one that its keys belong to; what does not fit together is dropped."""
    with Store(path, access, write=False) as opened, failures(Path(path), "adopted"):
        opened.files.lock(opened.access.wait)
        opened.keyring.files.lock(opened.access.wait)
        view = opened.view(strict=False)
        opened.assemble(view)
        opened.resolve(view)
        opened.keyring.destroy(view.without_file)
        for name in view.without_key:
            opened.files.remove(path_of(LEAVES, name))
        remove_empty(opened.files, LEAVES, {name[:2] for name in view.without_key})
        opened.keyring.put_place(opened.files.place)
        opened.keyring.files.settle()
        opened.files.settle()
        opened.write = True
        opened.recover()
    return Adopted(len(view.without_key), len(view.without_file))
