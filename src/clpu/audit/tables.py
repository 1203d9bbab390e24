"""An audit's table, in a terminal and as Markdown: one row per method, one column per attack."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from clpu import terminal
from clpu.audit.findings import Findings
from clpu.audit.run import Audit
from clpu.audit.verdict import ATTACKS, EXACT, TRACE, power, strongest, verdict
from clpu.methods import label_of
from clpu.report import formatting
from clpu.report.machines import mixture
from clpu.report.tables import profile

#: Short names of the attacks for the terminal.
SHORT = dict(zip(ATTACKS, ("outputs", "side eff.", "LiRA", "threshold", "relearn", "relapse", "features")))

STYLES = {EXACT: "green", TRACE: "red"}

#: The meaning of the columns, for the line below a table.
KEY = (
    "Each cell: the strongest effect across forget requests [95% interval]; * marks what counts as found. "
    "Outputs, side effects and features: separation of the two groups, 0 for none, 1 for complete. "
    "Membership, threshold, relearning and relapse: AUC, 0.5 for chance."
)


def cell(findings: Findings, attack: str) -> str:
    """The strongest effect of an attack, with its interval, and a star if it counts as found."""
    if attack not in {a.name for a in findings.attacks}:
        return "–"
    hit = strongest(findings, attack)
    effect = hit.effect
    value, low, high = (formatting.number(v) for v in (effect.value, effect.low, effect.high))
    return f"{value}{'*' if hit.found else ''} [{low}, {high}]"


def heading(audit: Audit) -> str:
    """Describe the audit in one line."""
    recipe = audit.recipe
    return (
        f"{formatting.benchmark(recipe.benchmark)}, profile {profile(recipe)}, requests {recipe.requests}, "
        f"{len(recipe.seeds)} agents per group"
    )


def caveat(audit: Audit) -> str:
    """Describe what the audit could find, and how often it errs."""
    first = next(iter(audit.findings.values()))
    mixed = mixture(audit.recipe, list(audit.findings))
    return (
        f"A method that leaves no trace is flagged in at most {100 * first.error_rate:g}% of audits (Holm correction "
        f"across all attacks on it). {power(first)}" + (f" {mixed}" if mixed else "")
    )


def show(audit: Audit, console: Console | None = None) -> None:
    """Print the strongest effect of each attack, and below it the verdicts, each with its explanation."""
    console = console or terminal.console(pipe_width=terminal.PIPE_WIDTH)
    console.print(terminal.text(heading(audit), style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("method", "verdict", *(SHORT[attack] for attack in ATTACKS)):
        table.add_column(column, no_wrap=True)
    for method, findings in audit.findings.items():
        kind = verdict(findings).kind
        cells = [cell(findings, attack).partition(" ")[0] for attack in ATTACKS]
        marked = [terminal.text(text, style="red" if "*" in text else "") for text in cells]
        name = terminal.text(label_of(method))
        table.add_row(name, terminal.text(kind, style=STYLES.get(kind, "yellow")), *marked)
    console.print(table)
    console.print(terminal.text(KEY, style="dim"))
    console.print(terminal.text(caveat(audit), style="dim"))
    for method, findings in audit.findings.items():
        said = verdict(findings)
        line = terminal.text(f"{label_of(method)}: ", style="bold")
        line.append_text(terminal.text(said.title, style=STYLES.get(said.kind, "yellow")))
        console.print(line.append_text(terminal.text(f". {said.explanation}", style="not bold")))


def markdown(audit: Audit) -> str:
    """The same as Markdown."""
    lines = [f"**{heading(audit)}**", "", "| method | verdict | bits | " + " | ".join(ATTACKS) + " |"]
    lines.append("|---|---|---|" + "---|" * len(ATTACKS))
    for method, findings in audit.findings.items():
        cells = " | ".join(cell(findings, attack).replace("*", "\\*") for attack in ATTACKS)
        bits = "equal" if findings.exact else "differ"
        lines.append(f"| {label_of(method)} | {verdict(findings).title} | {bits} | {cells} |")
    command = f"\nMade by `{audit.recipe.command}`." if audit.recipe.command else ""
    return "\n".join([*lines, "", KEY.replace("*", "\\*"), "", caveat(audit), command]).rstrip() + "\n"
