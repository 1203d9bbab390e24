"""Taking care of master keys: rotating them, changing their protection, and recovering what can never be forgotten."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from clpu.errors import BadKeys, BadStore
from clpu.io import write_atomically
from clpu.store.files import PART, Files, failures, make_folders, open_folder, refuse_inside
from clpu.store.folder import Access
from clpu.store.format import (
    ABOUT,
    INTENT,
    KEYS,
    LEAVES,
    MASTER,
    MAX_JSON_BYTES,
    PLACE,
    About,
    checked_json,
    is_hex,
    is_shard,
    to_json,
)
from clpu.store.keyring import Keyring, Secrets, remove_empty
from clpu.store.protection import Unlock
from clpu.store.receipt import read_text
from clpu.store.sealing import new_key
from clpu.store.store import Store

FORMAT = "clpu-recovery"
VERSION = 1

PathLike = str | os.PathLike[str]


def rotate(path: PathLike, access: Access | None = None, unlock: Unlock | None = None) -> None:
    """Give a store new master keys, under new protection if `unlock` says so; its identity stays.

    Every wrapped key and every permanent file is written anew. An interrupted rotation is completed at the next open.
    """
    with Store(path, access, write=True) as store, failures(Path(path), "written"):
        store.load()
        old = store.secrets
        both = replace(old, permanent=(old.permanent[-1], new_key()), wrapping=(old.wrapping[-1], new_key()))
        store.access = replace(store.access, unlock=unlock or store.access.unlock)
        store.keyring.put_secrets(both, store.access.unlock)
        store.secrets = both
        store.finish_rotation()


def export_recovery(path: PathLike, out: Path, access: Access | None = None) -> None:
    """Write the keys of what can never be forgotten to a file: with it, that survives the loss of the keys folder.

    It opens nothing that can be forgotten, so keeping it undoes no forget.
    """
    with Store(path, access, write=False) as store:
        refuse_inside(store.path, out)
        secrets = store.secrets
    content = {"format": FORMAT, "version": VERSION, "identity": secrets.identity, "names": secrets.names.hex()}
    if out.exists():
        raise BadKeys(f"{out} already exists; choose a different name")
    write_atomically(out, to_json({**content, "permanent": secrets.permanent[-1].hex()}), private=True)


def recover(path: PathLike, recovery: Path, access: Access | None = None) -> int:
    """Make a store whose keys are lost usable again, with all that can never be forgotten; returns how many tasks.

    Parts with their own keys are lost with them, and their files are removed. The store signs with a new identity.
    """
    access, folder = access or Access(), Path(path)
    names, permanent, identity = _read_recovery(recovery)
    with failures(folder, "recovered"):
        files = open_folder(folder)
        try:
            files.lock(access.wait)
            about = About.from_bytes(files.read(ABOUT, MAX_JSON_BYTES))
            keys = folder / KEYS if access.keys is None else Path(access.keys)
            if about.identity != identity:
                raise BadKeys(f"{recovery} belongs to a different store; nothing was changed")
            if not about.keys_here and access.keys is None:
                raise BadKeys("say where the new keys folder is to be: --keys PATH")
            if INTENT in files.names():
                raise BadStore("a request was interrupted before the keys were lost; restore a copy of the store first")
            make_folders(keys, [])
            keyring = Keyring(keys, here=about.keys_here)
            try:
                keyring.files.lock(access.wait)
                _refuse_living(keyring, about.identity, files.place)
                secrets = Secrets(new_key(), names, (permanent,), (new_key(),))
                keyring.put_place(files.place)
                keyring.put_secrets(secrets, access.unlock)
            finally:
                keyring.close()
            _remove_leaves(files)
            files.put(ABOUT, About(secrets.identity, about.keys_here).to_bytes())
            files.settle()
        finally:
            files.close()
    with Store(folder, access, write=True) as store:
        return len(store.load().tasks)


def _refuse_living(keyring: Keyring, identity: str, place: tuple[int, int]) -> None:
    """Refuse a keys folder that is not lost; an interrupted recovery leaves new keys for this place."""
    names, holder = set(keyring.files.names()), keyring.identity()
    others = names - {MASTER, PLACE, MASTER + PART, PLACE + PART}
    if others or holder == identity or (holder is not None and not keyring.belongs_to(place)):
        raise BadKeys(f"{keyring.files.path} holds keys; recovering is for a keys folder that is lost")


def _remove_leaves(files: Files) -> None:
    shards = [shard for shard in files.names(LEAVES) if is_shard(shard)]
    for shard in shards:
        for name in files.names(f"{LEAVES}/{shard}"):
            files.remove(f"{LEAVES}/{shard}/{name}")
    if LEAVES in files.names():
        remove_empty(files, LEAVES, shards)
    files.settle()


def _read_recovery(path: Path) -> tuple[bytes, bytes, str]:
    try:
        content = checked_json(read_text(path).encode(), FORMAT, VERSION, str(path))
        names, permanent, identity = (content.get(name) for name in ("names", "permanent", "identity"))
        if not all(is_hex(key, 32) for key in (names, permanent, identity)):
            raise ValueError("a key is missing")
    except ValueError as error:
        raise BadKeys(f"{path} is not a recovery file: {error!s:.200}") from None
    return bytes.fromhex(str(names)), bytes.fromhex(str(permanent)), str(identity)
