"""Packages and homes: fetched through the machine's clients, each failure in one line, never twice."""

import dataclasses
import email.message
import io
import os
import shutil
import subprocess
import sys
import urllib.request
import urllib.response
from pathlib import Path

import pytest
import tiny

from clpu.data import catalog, fetch, loading, sources
from clpu.data.catalog import Debian, Home, Npm
from clpu.data.errors import NotAvailable, SourceFailed

BIN = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for stand-ins of npm and apt-get, the only such clients on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tools = {"sh": shutil.which("sh"), "cp": shutil.which("cp"), "sleep": shutil.which("sleep")}
    tools["dpkg-deb"] = shutil.which("dpkg-deb")
    for name, path in tools.items():
        if path:
            (folder / name).symlink_to(path)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def stand_in(clients: Path, name: str, script: str) -> Path:
    """Put a client on the PATH that notes each call; returns the note."""
    log = clients / f"{name}.log"
    (clients / name).write_text(f'#!{shutil.which("sh")}\necho "$@" >> {log}\n{script}\n')
    (clients / name).chmod(0o755)
    return log


def register(monkeypatch: pytest.MonkeyPatch, name: str, *from_: catalog.Source) -> None:
    monkeypatch.setitem(catalog.DATASETS, name, tiny.describe(name, from_))


def npm_package(folder: Path) -> Path:
    files = tiny.write(folder / "strips", tiny.COLOUR, "png-strips")
    return tiny.pack(folder / "made.tgz", {f"package/{path.name}": path.read_bytes() for path in files.iterdir()})


def test_an_npm_package_is_fetched_once_and_then_never_again(
    cache: Path, originals: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = npm_package(originals)
    log = stand_in(clients, "npm", f"cp {package} some-1.0.0.tgz")
    register(monkeypatch, tiny.COLOUR, Npm("some", "1.0.0"))
    got = fetch.get(tiny.COLOUR)
    assert (got.origin, got.already) == ("npm package some 1.0.0", False)
    assert log.read_text().split()[-1] == "some@1.0.0"
    (clients / "npm").unlink()
    again = fetch.get(tiny.COLOUR)
    assert (again.origin, again.already) == ("npm package some 1.0.0", True)
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb to make a Debian package")
@pytest.mark.parametrize("packing", ["xz", "gzip"])
def test_a_debian_package_is_fetched_and_read(
    cache: Path, originals: Path, clients: Path, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    tree = originals / "tree"
    tiny.write(tree / "usr/share/datasets/tiny", tiny.GREY, "idx+gz")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN" / "control").write_text(
        "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: small\n"
    )
    with monkeypatch.context() as usual:
        usual.setenv("PATH", BIN)
        subprocess.run(
            ["dpkg-deb", f"-Z{packing}", "-b", str(tree), str(originals / "made.deb")],
            check=True,
            capture_output=True,
        )
    log = stand_in(clients, "apt-get", f"cp {originals}/made.deb tiny_1_all.deb")
    register(monkeypatch, tiny.GREY, Debian("tiny"))
    assert fetch.get(tiny.GREY).origin == "Debian package tiny"
    assert log.read_text() == "download tiny\n"
    assert len(loading.load(tiny.GREY).train) == tiny.COUNTS["train"]


def test_each_failure_is_one_line_and_the_error_lists_all_that_was_tried(
    cache: Path, originals: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(clients, "npm", "echo 'npm error 404 no such package' >&2; exit 1")
    stand_in(clients, "apt-get", "echo 'E: Unable to locate package tiny' >&2; exit 100")
    register(monkeypatch, tiny.GREY, Npm("some", "1.0.0"), Debian("tiny"))
    steps: list[fetch.FetchProgress] = []
    with pytest.raises(NotAvailable) as caught:
        fetch.get(tiny.GREY, folder=originals, progress=steps.append)
    failures = [step.text for step in steps if step.failed]
    assert all("\n" not in line for line in failures)
    for line, expected in zip(
        caught.value.tried,
        [
            f"folder {originals} contains no files of tiny-grey",
            "not in the cache",
            "npm package some 1.0.0: npm failed (npm error 404 no such package)",
            "Debian package tiny: apt-get failed (E: Unable to locate package tiny); run `apt-get update`",
        ],
        strict=True,
    ):
        assert line.startswith(expected)
        assert line in str(caught.value)
    assert "clpu data get tiny-grey --from FOLDER" in str(caught.value)


@pytest.mark.usefixtures("clients")
def test_a_machine_without_the_clients_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, tiny.GREY, Npm("some", "1.0.0"), Debian("tiny"))
    with pytest.raises(NotAvailable) as caught:
        fetch.get(tiny.GREY)
    assert "npm is not installed" in caught.value.tried[1]
    assert "apt-get is not installed" in caught.value.tried[2]


def test_a_package_with_different_content_is_refused_and_the_next_source_is_tried(
    cache: Path, originals: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = npm_package(originals)
    bad = tiny.pack(originals / "bad.tgz", {"package/data_batch_1.png": b"?"})
    stand_in(clients, "npm", f'case "$*" in *bad*) cp {bad} a.tgz;; *) cp {good} a.tgz;; esac')
    register(monkeypatch, tiny.COLOUR, Npm("bad", "1"), Npm("good", "1"))
    steps: list[fetch.FetchProgress] = []
    assert fetch.get(tiny.COLOUR, progress=steps.append).origin == "npm package good 1"
    assert [step.text for step in steps if step.failed] == [
        "a.tgz (npm package bad 1) does not contain the files of tiny-colour; it contains data_batch_1.png"
    ]


def test_offline_runs_no_client(cache: Path, clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stand_in(clients, "npm", "exit 1")
    register(monkeypatch, tiny.GREY, Npm("some", "1.0.0"))
    with pytest.raises(NotAvailable, match=r"not tried \(offline\)"):
        fetch.get(tiny.GREY, offline=True)
    assert not log.exists()


def test_a_damaged_cache_is_removed_and_fetched_anew(
    cache: Path, originals: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stand_in(clients, "npm", f"cp {npm_package(originals)} a.tgz")
    register(monkeypatch, tiny.COLOUR, Npm("some", "1.0.0"))
    fetch.get(tiny.COLOUR)
    (cache / "data" / tiny.COLOUR / "train_x.npy").write_bytes(b"rot")
    steps: list[fetch.FetchProgress] = []
    assert not fetch.get(tiny.COLOUR, progress=steps.append).already
    assert len(log.read_text().splitlines()) == 2
    assert any(step.failed and "removed from the cache" in step.text for step in steps)
    fetch.recheck(tiny.COLOUR)


def test_two_processes_that_ask_at_once_fetch_once(cache: Path, originals: Path, clients: Path) -> None:
    log = stand_in(clients, "npm", f"sleep 0.5; cp {npm_package(originals)} a.tgz")
    script = (
        "import tiny\nfrom clpu.data import catalog, fetch\n"
        "source = catalog.Npm('some', '1.0.0')\n"
        "catalog.DATASETS[tiny.COLOUR] = tiny.describe(tiny.COLOUR, (source,))\n"
        "print(fetch.get(tiny.COLOUR).already)"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-B", "-c", script],
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert sorted(process.communicate(timeout=60)[0].strip() for process in both) == ["False", "True"]
    assert len(log.read_text().splitlines()) == 1


class Web(urllib.request.HTTPSHandler):
    """Answers https requests from a dictionary; a string is a redirection."""

    def __init__(self, pages: dict[str, bytes | str], missing: int = 0) -> None:
        super().__init__()
        self.pages, self.missing = pages, missing

    def https_open(self, req: urllib.request.Request) -> urllib.response.addinfourl:  # type: ignore[override]
        page = self.pages.get(req.full_url)
        headers = email.message.Message()
        body = page if isinstance(page, bytes) else b""
        headers["Content-Length"] = str(len(body) + self.missing)
        if isinstance(page, str):
            headers["Location"] = page
        code = 404 if page is None else 302 if isinstance(page, str) else 200
        answer = urllib.response.addinfourl(io.BytesIO(body), headers, req.full_url, code)
        answer.msg = "found"  # type: ignore[attr-defined]
        return answer


HOME = Home("https://home.test/", ("cifar-10-binary.tar.gz",))


def ask_home(
    monkeypatch: pytest.MonkeyPatch, pages: dict[str, bytes | str], missing: int = 0, home: Home = HOME
) -> list[fetch.FetchProgress]:
    steps: list[fetch.FetchProgress] = []
    register(monkeypatch, tiny.COLOUR, home)
    handlers = (Web(pages, missing), sources._HttpsOnly)
    monkeypatch.setattr(sources, "opener", lambda: urllib.request.build_opener(*handlers))
    fetch.get(tiny.COLOUR, progress=steps.append)
    return steps


def archive(folder: Path) -> bytes:
    return (tiny.write(folder, tiny.COLOUR, "cifar-binary+tar") / HOME.files[0]).read_bytes()


def test_an_official_home_is_fetched_with_progress_and_over_redirections(
    cache: Path, originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = archive(originals)
    elsewhere = "https://elsewhere.test/file"
    steps = ask_home(monkeypatch, {HOME.url + HOME.files[0]: elsewhere, elsewhere: data})
    assert (len(data), len(data)) in {(step.done, step.total) for step in steps}
    assert loading.load(tiny.COLOUR).name == tiny.COLOUR


@pytest.mark.parametrize(
    ("answer", "missing", "message"),
    [
        (None, 0, "Not Found|found"),
        ("http://home.test/plain", 0, "which is not https: refused"),
        (b"?" * 10**6, 0, "sends more than"),
        (b"?" * 100, 50, "was interrupted after 100 of 150 bytes"),
        (b"?" * 100, 0, "truncated or damaged"),
    ],
)
def test_a_site_that_fails_is_reported_and_nothing_is_stored(
    cache: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | str | None, missing: int, message: str
) -> None:
    pages = {} if answer is None else {HOME.url + HOME.files[0]: answer}
    with pytest.raises(NotAvailable, match=message):
        ask_home(monkeypatch, pages, missing)
    assert [path.name for path in (cache / "data").iterdir()] == [f".{tiny.COLOUR}.lock"]


def test_a_home_that_is_not_https_is_never_asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAvailable, match="is not https: refused"):
        ask_home(monkeypatch, {}, home=dataclasses.replace(HOME, url="http://home.test/"))


def test_every_home_in_the_catalogue_is_https() -> None:
    homes = [source for entry in catalog.DATASETS.values() for source in entry.sources if isinstance(source, Home)]
    assert homes
    assert all(home.url.startswith("https://") and home.url.endswith("/") for home in homes)


def test_a_client_that_leaves_nothing_behind_is_reported(
    cache: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(clients, "npm", "exit 0")
    with pytest.raises(SourceFailed, match=r"expected one \*\.tgz file, found 0"):
        sources.from_package(tiny.describe(tiny.GREY), Npm("a", "1"), clients, lambda *_: None)
