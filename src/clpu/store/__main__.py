"""The commands of a durable agent on their own: `python -m clpu.store`."""

import typer

from clpu.store.cli import add_commands
from clpu.terminal import Program

app = typer.Typer(cls=Program, no_args_is_help=True, pretty_exceptions_show_locals=False)
add_commands(app)

if __name__ == "__main__":
    app()
