"""The keys folder: the master keys, and one wrapped random key for each file that can be forgotten."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clpu.errors import BadKeys, BadStore
from clpu.io import canonical
from clpu.store.files import PART, Files
from clpu.store.format import (
    MASTER,
    MAX_JSON_BYTES,
    PLACE,
    checked_json,
    is_hex,
    is_name,
    is_shard,
    path_of,
    to_json,
)
from clpu.store.protection import Unlock
from clpu.store.sealing import NONCE, TAG, derived, new_key, public_key, seal, unseal

FORMAT = "clpu-keys"
VERSION = 3
#: A wrapped key: nonce, length, key, tag.
ENTRY = NONCE + 8 + 32 + TAG


@dataclass(frozen=True)
class Secrets:
    """The master keys; of `permanent` and `wrapping` the last one counts, earlier ones are being rotated out."""

    signing: bytes
    names: bytes
    permanent: tuple[bytes, ...]
    wrapping: tuple[bytes, ...]

    @classmethod
    def new(cls) -> Secrets:
        return cls(new_key(), new_key(), (new_key(),), (new_key(),))

    @property
    def identity(self) -> str:
        """The public half of the signing key; it is in `about.json`, and binds store and keys together."""
        return public_key(self.signing)

    def __repr__(self) -> str:  # never a key in a log
        return f"<Secrets of store {self.identity[:8]}>"

    def to_bytes(self) -> bytes:
        several = {"permanent": [key.hex() for key in self.permanent], "wrapping": [key.hex() for key in self.wrapping]}
        return canonical({"signing": self.signing.hex(), "names": self.names.hex(), **several}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Secrets:
        """Read what `to_bytes` wrote; `ValueError` for anything else."""
        content = json.loads(data)
        if not isinstance(content, dict) or content.keys() != {"signing", "names", "permanent", "wrapping"}:
            raise ValueError("it does not hold the master keys")
        several = [content["permanent"], content["wrapping"]]
        if not all(isinstance(keys, list) and 1 <= len(keys) <= 2 for keys in several):
            raise ValueError("it does not hold the master keys")
        for key in [content["signing"], content["names"], *several[0], *several[1]]:
            if not is_hex(key, 32):
                raise ValueError("a key is not 32 bytes in hexadecimal")
        permanent, wrapping = (tuple(map(bytes.fromhex, keys)) for keys in several)
        return cls(bytes.fromhex(content["signing"]), bytes.fromhex(content["names"]), permanent, wrapping)


class Keyring:
    """Reads and changes a keys folder."""

    def __init__(self, path: Path, *, here: bool) -> None:
        self.here = here
        try:
            self.files = Files(path)
        except (FileNotFoundError, NotADirectoryError):
            raise BadKeys(
                f"the keys folder {path} is missing; nothing was changed. Put it back from where you keep it; "
                "`clpu recover` restores what can never be forgotten from a recovery file"
            ) from None
        except PermissionError as error:
            raise BadKeys(f"the keys folder {path} cannot be read: {error.strerror}") from None

    def close(self) -> None:
        self.files.close()

    # Master keys

    def secrets(self, identity: str, unlock: Unlock) -> Secrets:
        """The master keys of the store of that identity."""
        where, content = self.files.path / MASTER, self._master()
        if content is None:
            raise BadKeys(f"{self.files.path} is not a keys folder: {MASTER} is missing; nothing was changed")
        if content.get("identity") != identity:
            raise BadKeys(f"the keys in {self.files.path} belong to a different store; nothing was changed")
        try:
            secrets = Secrets.from_bytes(unlock.unprotect(content, str(where)))
        except (ValueError, RecursionError) as error:
            if isinstance(error, BadKeys):
                raise
            raise BadKeys(f"{where} is damaged: {error!s:.200}") from None
        if secrets.identity != identity:
            raise BadKeys(f"{where} is damaged: its keys do not fit its identity")
        return secrets

    def identity(self) -> str | None:
        """Whose master keys these are; `None` if there are none."""
        content = self._master()
        return None if content is None else str(content.get("identity"))

    def _master(self) -> dict[str, object] | None:
        where = self.files.path / MASTER
        try:
            return _checked(self.files.read(MASTER, MAX_JSON_BYTES), str(where))
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise BadKeys(f"{where} cannot be read: {error.strerror}") from None

    def put_secrets(self, secrets: Secrets, unlock: Unlock) -> None:
        """Replace the master keys, durably; the old ones are wiped."""
        about = {"format": FORMAT, "version": VERSION, "identity": secrets.identity}
        self.files.put(MASTER, to_json({**about, **unlock.protect(secrets.to_bytes())}), wipe=True)
        self.files.settle()

    def check_mode(self) -> None:
        """Refuse keys that others on this machine can read."""
        mode = stat.S_IMODE(self.files.about("").st_mode)
        if mode & 0o077:
            raise BadKeys(
                f"others on this machine can reach the keys in {self.files.path} (mode {mode:o}): "
                f"run `chmod go= {self.files.path}`, or pass --shared-keys if that is meant"
            )

    # The folder that the keys belong to

    def belongs_to(self, place: tuple[int, int]) -> bool:
        """Whether these are the keys of the folder with this device and inode, not of a copy of it."""
        if self.here:
            return True
        try:
            content = _checked(self.files.read(PLACE, MAX_JSON_BYTES), str(self.files.path / PLACE))
        except FileNotFoundError:
            return False
        return (content.get("device"), content.get("inode")) == place

    def put_place(self, place: tuple[int, int]) -> None:
        """Record which folder the keys belong to, durably."""
        if not self.here:
            content = {"format": FORMAT, "version": VERSION, "device": place[0], "inode": place[1]}
            self.files.put(PLACE, to_json(content))
            self.files.settle()

    # Keys of leaves

    def scan(self, known: dict[str, bytes]) -> dict[str, bytes]:
        """Every wrapped key by name; those that are known are not read again."""
        found: dict[str, bytes] = {}
        try:
            for shard in filter(is_shard, self.files.names()):
                names = [name for name in self.files.names(shard) if is_name(name, shard)]
                found.update((name, known[name]) for name in names if name in known)
                unread = [name for name in names if name not in known]
                if unread:
                    with suppress(FileNotFoundError):  # a writer just removed the folder
                        found.update(self.files.read_all(shard, unread, ENTRY))
        except PermissionError as error:
            raise BadKeys(f"the keys in {self.files.path} cannot be read: {error.strerror}") from None
        return found

    def put(self, secrets: Secrets, keys: dict[str, bytes]) -> dict[str, bytes]:
        """Add keys, durably; returns them wrapped."""
        wrapped = {name: wrap(secrets, name, key) for name, key in keys.items()}
        for name, entry in wrapped.items():
            self.files.put(path_of("", name), entry, wipe=True)
        self.files.settle()
        return wrapped

    def destroy(self, names: Iterable[str]) -> None:
        """Overwrite and remove keys; durable after `files.settle`."""
        for name in names:
            self.files.remove(path_of("", name), wipe=True)
        remove_empty(self.files, "", {name[:2] for name in names})

    def parts(self) -> list[str]:
        """List the files that interrupted writes left."""
        top = self.files.names()
        inside = [f"{shard}/{name}" for shard in filter(is_shard, top) for name in self.files.names(shard)]
        return [name for name in [*top, *inside] if name.endswith(PART) and _ours(name.removesuffix(PART))]

    def clear_parts(self) -> None:
        for name in self.parts():
            self.files.remove(name, wipe=True)


def wrap(secrets: Secrets, name: str, key: bytes) -> bytes:
    return seal(derived(secrets.wrapping[-1], "wrap")[:32], f"key {name}", key, 1)


def unwrap(secrets: Secrets, name: str, entry: bytes) -> bytes:
    """A leaf's key; `BadKeys` if it is not one."""
    for master in reversed(secrets.wrapping):
        with suppress(BadStore):
            return unseal(derived(master, "wrap")[:32], f"key {name}", entry)
    raise BadKeys(f"the key of {name} is damaged, or is not of this store")


def remove_empty(files: Files, folder: str, shards: Iterable[str]) -> None:
    """Remove the folders of leaves that became empty, and the folder of these folders."""
    import errno

    paths = [f"{folder}/{shard}" if folder else shard for shard in shards]
    for path in [*paths, *([folder] if folder else [])]:
        try:
            files.remove_folder(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _ours(name: str) -> bool:
    shard, slash, leaf = name.rpartition("/")
    return is_name(leaf, shard) if slash else name in (MASTER, PLACE)


def _checked(data: bytes, where: str) -> dict[str, object]:
    try:
        return checked_json(data, FORMAT, VERSION, where)
    except BadStore as error:
        raise BadKeys(str(error)) from None


def keys_folder(store: Path, here: bool, given: str | os.PathLike[str] | None, inside: str) -> Path:
    """Where a store's keys are: in it, or where the user says."""
    place = None if given is None else Path(given).resolve()
    if here:
        if place not in (None, store.resolve() / inside):
            raise BadKeys(
                f"the keys of {store} are stored in it; leave out the path of the keys "
                "(--keys, or the environment variable CLPU_KEYS)"
            )
        return store / inside
    if place is None:
        raise BadKeys(f"the keys of {store} are stored outside it: give the keys folder with --keys PATH")
    return place
