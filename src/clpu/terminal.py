"""Everything that is printed, and the one handler of errors of every command.

Text from outside (names, paths, receipts, messages that quote them) is shown literally: markup in it means nothing, and
control characters are shown escaped. What the terminal's encoding lacks is replaced. Nothing heavy is imported here.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from clpu.errors import Error

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.text import Text

#: The exit code if the work was done and saved but its result could not be printed: standard output is closed or full.
UNPRINTED = 3
#: The meaning of the exit codes, for the end of the help.
EXIT_CODES = (
    "Exit codes: 0 done; 1 failed (one line says why); 2 wrong command line; "
    f"{UNPRINTED} done and saved, but the output could not be printed; 130 interrupted."
)

#: How wide a table of many columns is in a pipe, where rich would guess 80 and cut numbers off.
PIPE_WIDTH = 120

#: Substitutes for the characters beyond ASCII that our own output uses. Anything else is shown as an escape.
SUBSTITUTES = {
    **dict.fromkeys("─━┄┅┈┉╌╍═╴╶╸╺╼╾–—−‐‑", "-"),
    **dict.fromkeys("│┃┆┇┊┋╎╏║╵╷╹╻╽╿", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╭╮╯╰╞╡╪┠┨┯┷┿┝┥┡┩╇╈╤╧╫╟╢╒╕╘╛╓╖╙╜", "+"),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”", '"'),
    "×": "x",
    "·": ".",
    "•": "*",
    "±": "+/-",
    "…": "...",
    "°": " deg",
    "↑": "^",
    "↓": "v",
    "→": "->",
    "←": "<-",
    "∞": "inf",
    "θ": "theta",
    "λ": "lambda",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "²": "^2",
    "½": "1/2",
    "\xa0": " ",
}


def escape(text: object) -> str:
    r"""Text from outside on one line: what does not print (control, bidi, line separators) as an escape.

    >>> print(escape("[bold]\x1b[31m\u202etask\u2028 7\n"))
    [bold]\x1b[31m\u202etask\u2028 7\n
    """
    text = str(text)
    return text if text.isprintable() else "".join(c if _prints(c) else _escaped(c) for c in text)


def _prints(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # spaces of other scripts are plain text


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def fit(text: str, encoding: str | None) -> str:
    r"""Text that the encoding can express.

    >>> fit("93.8 ± 0.4 – é", "ascii"), fit("93.8 ± 0.4 – é", "latin-1")
    ('93.8 +/- 0.4 - \\xe9', '93.8 ± 0.4 - é')
    """
    encoding = encoding or "utf-8"
    if _has(encoding, text):
        return text
    return "".join(c if _has(encoding, c) else SUBSTITUTES.get(c) or _escaped(c) for c in text)


def _has(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def say(text: object, style: str = "", *, error: bool = False) -> None:
    """Print one line, whatever the text holds, on standard output or standard error; the style shows in terminals."""
    _line("", text, style, error)


def show_error(error: Exception) -> None:
    """An error in one line on standard error."""
    if isinstance(error, OSError) and not isinstance(error, Error):  # a full disk, a folder that must not be written, …
        text = f"{error.strerror or error}" + (f": {os.fsdecode(error.filename)}" if error.filename else "")
    else:
        text = f"{type(error).__name__}: {error}"
    _line("error:", text, "", error=True)


def _line(label: str, text: object, style: str, error: bool) -> None:
    stream = sys.stderr if error else sys.stdout
    if stream is None:  # closed, and not within `Program`
        return
    if (label or style) and stream.isatty():
        from rich.text import Text

        parts = ((label, "bold red"), " " if label else "", (escape(text), style))
        console(error=error).print(Text.assemble(*parts), soft_wrap=True)
    else:
        line = f"{label} {escape(text)}" if label else escape(text)
        print(fit(line, stream.encoding), file=stream, flush=True)


def say_json(value: Any, indent: int = 2) -> None:
    """Print a value as JSON for programs: ASCII, whose control characters JSON escapes."""
    print(json.dumps(value, indent=indent))


def text(value: object, style: str = "") -> Text:
    """Text from outside, or with signs beyond ASCII, as a cell or a paragraph of standard output."""
    from rich.text import Text

    return Text(fit(escape(value), getattr(sys.stdout, "encoding", None)), style)


def console(*, error: bool = False, pipe_width: int | None = None) -> Console:
    """A console on standard output or standard error that takes strings literally: no markup, emoji or highlighting."""
    from rich.console import Console
    from rich.segment import Segment

    class Literal(Console):
        # Before the layout, so that columns stay columns.
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(fit(text, self.encoding), **options)

        # What rich itself cuts off ends with an ellipsis of one cell, and three would not fit.
        def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
            ellipsis = "…" if _has(self.encoding, "…") else "~"
            for segment in super().render(*arguments, **options):
                yield segment._replace(text=segment.text.replace("…", ellipsis))

    stream = sys.stderr if error else sys.stdout
    width = None if stream is None or stream.isatty() else pipe_width
    return Literal(file=stream, stderr=error, width=width, markup=False, emoji=False, highlight=False)


def progress(console: Console, *columns: str | ProgressColumn, quiet: bool = False) -> Progress:
    """Bars that vanish when they are done, in terminals only; a string is a column's format and is taken literally."""
    from rich.progress import Progress, TextColumn

    drawn = [TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns]
    return Progress(*drawn, console=console, transient=True, disable=quiet or not console.is_terminal)


class Program(TyperGroup):
    """A program or group of commands (`typer.Typer(cls=Program)`) that ends in one way whatever happens.

    An error of ours, or of the system, is one line and exit code 1. If standard output fails, the work continues to its
    end, and then one line and the exit code `UNPRINTED` say so. A reader who stops reading (`| head`) is not a failure.
    Tracebacks are for errors that nobody foresaw.
    """

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **more: Any) -> Any:  # type: ignore[override]
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **more)
        _occupy_closed_numbers()
        with _lasting_streams() as out:
            code: Any = 0
            try:
                super().main(args, **more)
            except SystemExit as end:
                code = end.code or 0
            out.flush()
            if out.failure is not None and out.failure.errno != errno.EPIPE:
                reason = out.failure.strerror or out.failure
                done = "" if code else "done and saved, but "
                _line("error:", f"{done}the output could not be printed: {reason}", "", error=True)
                code = code or UNPRINTED
        sys.exit(code)

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with _literal_usage_errors():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _literal_usage_errors():
                return super().invoke(ctx)
        except (Error, OSError) as error:
            show_error(error)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            say("interrupted", error=True)
            raise typer.Exit(130) from None


@contextmanager
def _literal_usage_errors() -> Iterator[None]:
    """Escape what typer's messages quote of a wrong command line."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "message"):  # which package has the class varies
            error.message = escape(error.message)
        raise


class _Lasting:
    """A standard stream that never raises: it replaces what it cannot encode and remembers its first failure.

    A full disk or a closed stream must not stop a command between two steps of its work.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        if text and self._stream is None and self.failure is None:
            self.failure = OSError(errno.EBADF, "standard output is closed")
        if self._stream is not None and self.failure is None:
            try:
                self._stream.write(fit(text, self.encoding))
            except (OSError, ValueError) as error:
                self._fail(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self._stream is not None and self.failure is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = error if isinstance(error, OSError) else OSError(errno.EBADF, str(error))
        # What is still in the buffer would fail again, loudly, when Python ends.
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError(errno.EBADF, "the stream is closed")
        return self._stream.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_stream"], name)


@contextmanager
def _lasting_streams() -> Iterator[_Lasting]:
    """Standard output and standard error that never raise, as long as a command runs."""
    before = sys.stdout, sys.stderr
    out, err = _Lasting(sys.stdout), _Lasting(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def _occupy_closed_numbers() -> None:
    """Give a closed standard stream's number to the null device.

    The next file to be opened would get it, one of a store perhaps, and a library that prints would write into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one


def duration(seconds: float) -> str:
    """Format a time span.

    >>> duration(0.25), duration(42), duration(754), duration(7500)
    ('0.2 s', '42 s', '12 min 34 s', '2 h 5 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"
