"""The program `clpu`. Modules here parse arguments and draw; what they call knows nothing of terminals.

The rule for imports in the whole package: modules that compute import torch (and NumPy) at their top. Modules that read
files, print or parse arguments do not; they import such modules inside the functions that need them. So `--help`,
`data list`, `report`, `status`, `verify`, `verify-receipt` and an exact `forget` start in a fraction of a second.
tests/test_startup.py keeps it so.
"""

from __future__ import annotations

import typer

from clpu import terminal
from clpu.options import Load, load_files
from clpu.settings import DEFAULT_METHOD

app = typer.Typer(
    name="clpu",
    cls=terminal.Program,
    help="Continual learning that can forget privately: remember (R), learn temporarily (T), forget (F).",
    epilog=terminal.EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from clpu import __version__

        terminal.say(f"clpu {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


@app.command()
def demo(
    method: str = typer.Option(DEFAULT_METHOD, help="The method; `clpu methods` lists them."),
    stream: str = typer.Option("clpu-2022", "--requests", help="Requests, such as '1R 2T 2F', for tasks 1 to 5."),
    seed: int = typer.Option(0, help="The agent's seed."),
    threads: int = typer.Option(1, help="Number of threads. A different number may give different digests."),
    load: Load = None,
) -> None:
    """Watch an agent learn five rotations of handwritten digits, forget two, and prove that nothing is left."""
    from clpu.cli.demo import show

    load_files(load)
    show(method, stream, seed, threads)


@app.command()
def methods(load: Load = None) -> None:
    """List the methods, whether they forget exactly, and their settings."""
    from clpu.cli.methods import show

    load_files(load)
    show()


def _add_commands() -> None:
    from clpu.audit.cli import add_commands as add_audit
    from clpu.bases.cli import app as bases
    from clpu.bench.cli import add_commands as add_bench
    from clpu.data.cli import app as data
    from clpu.report.cli import add_commands as add_report
    from clpu.store.cli import add_commands as add_store

    add_bench(app)
    add_report(app)
    add_audit(app)
    add_store(app)
    app.add_typer(data, name="data")
    app.add_typer(bases, name="bases")


_add_commands()


def main() -> None:
    """Run the program."""
    app()
