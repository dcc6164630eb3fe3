"""The verdicts of a run as tables in Markdown, and in a few lines."""

from collections.abc import Iterator, Mapping, Sequence

from tests.faults.verdicts import Verdict

FIGURES = ("acknowledged", "delivered", "lost", "recovered", "unexpected", "duplicated", "inverted", "unflagged")
BETWEEN = "/"
"""Between the kind of work and what was broken, in the name of a case that has both."""


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return every case with its figures, and before that what was broken against the kinds of work."""
    crossed = {verdict.case: verdict for verdict in verdicts if BETWEEN in verdict.case}
    tables = [[*_crossed(crossed)] if crossed else [], [*_listed(verdicts)]]
    return "\n\n".join("\n".join(lines) for lines in tables if lines) + "\n"


def summary(verdicts: Sequence[Verdict], seconds: float) -> str:
    """Return what has not passed, and the sums of all, which took so many seconds together."""
    failed = [f"{verdict.case}: {verdict.reason}" for verdict in verdicts if verdict.reason]
    audits = [verdict.audit for verdict in verdicts if verdict.audit]
    found = f"audited {sum(audit.audited for audit in audits)}, unexplained {sum(one.unexplained for one in audits)}"
    passed = len(verdicts) - len(failed)
    return "\n".join([*failed, f"{len(verdicts)} cases in {seconds / 60:.0f} minutes, {passed} passed; {found}"])


def _crossed(verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    """Yield the lines of a table with a row for each fault, and a column for each kind of work."""
    kinds = [*dict.fromkeys(case.partition(BETWEEN)[0] for case in verdicts)]
    faults = dict.fromkeys(case.partition(BETWEEN)[2] for case in verdicts)
    yield _row("", *kinds)
    yield _row("---", *("---:" for _ in kinds))
    for fault in faults:
        yield _row(f"`{fault}`", *(_cell(verdicts.get(f"{kind}{BETWEEN}{fault}")) for kind in kinds))


def _cell(verdict: Verdict | None) -> str:
    """Return how much was delivered, and how often it came twice; or that it has not passed."""
    if not verdict:
        return ""
    copies = f" + {verdict.figures.duplicated}" if verdict.figures.duplicated else ""
    return "**no**" if verdict.reason else f"{verdict.figures.delivered}{copies}"


def _listed(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the lines of a table with a row for each case."""
    names = (*(name for name in FIGURES), "pause", "unexplained", "seconds")
    yield _row("case", "passed", *names)
    yield _row("---", "---", *("---:" for _ in names))
    for verdict in verdicts:
        counts = [getattr(verdict.figures, name) for name in FIGURES]
        unexplained = verdict.audit.unexplained if verdict.audit else "-"
        passed = "**no**" if verdict.reason else "yes"
        measured = (verdict.figures.pause or "-", unexplained, f"{verdict.seconds:g}")
        yield _row(f"`{verdict.case}`", passed, *counts, *measured)


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
