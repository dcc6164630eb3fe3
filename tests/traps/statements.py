"""Rules about SQL and HTML: what is put together from texts."""

import ast
import re
from collections.abc import Iterator

from tests.traps.rule import Rule
from tests.traps.sources import Source, is_constant

EXECUTING = {"execute", "executemany", "raw", "extra", "RawSQL", "copy", "stream"}
SQL = re.compile(
    r"\b(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s.+\sSET|DELETE\s+FROM|(CREATE|ALTER|DROP|TRUNCATE)\s+(TABLE|INDEX))\b",
    re.DOTALL,
)
PARTITIONS = (
    *(f"analytics/pipeline/extraction/{name}.py" for name in ("counting", "leaves", "statements")),
    *(f"delivery/retention/{name}.py" for name in ("kept_messages", "retaining", "storage_days")),
)
FRAGMENTS = (
    *("delivery/looking/standing_statements.py", "delivery/looking/under_way.py"),
    *(f"delivery/mailboxes/{name}.py" for name in ("available", "endings", "expiring", "fetch_statements")),
    *("delivery/mailboxes/returning.py", "delivery/mailboxes/standing.py"),
    "delivery/settling/announcement_statements.py",
)
SAFE = ("django.utils.safestring.mark_safe", "django.utils.safestring.SafeString", "django.utils.html.SafeString")


def parts_of(node: ast.AST) -> list[ast.expr]:
    """Return what is put into a text, constants apart."""
    match node:
        case ast.JoinedStr(values=values):
            inner = [value.value for value in values if isinstance(value, ast.FormattedValue)]
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            inner = [left, right]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            inner = [part for one in (left, right) for part in (parts_of(one) if _is_text(one) else [one])]
        case ast.Call(func=ast.Attribute(value=owner, attr="format"), args=args, keywords=keywords):
            inner = [] if _is_composed(owner) else [owner, *args, *(keyword.value for keyword in keywords)]
        case _:
            return []
    return [one for one in inner if not is_constant(one)]


def _is_text(node: ast.AST) -> bool:
    """Say whether it is put together itself."""
    return isinstance(node, ast.JoinedStr | ast.BinOp)


def _is_composed(node: ast.AST) -> bool:
    """Say whether it is `sql.SQL(…)`, which quotes what it is given."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "SQL"


def text_of(node: ast.AST) -> str:
    return "".join(one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def sql_from_values(source: Source) -> Iterator[ast.AST]:
    """Find what runs a text put together on the spot, and what looks like SQL with something in it.

    What is put together when a module is imported holds nothing that anybody has sent.
    """
    for node in source.nodes_of_functions():
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[first, *_]) if name in EXECUTING:
                if parts_of(first):
                    yield first
            case ast.JoinedStr() | ast.BinOp() | ast.Call() if parts_of(node) and SQL.search(text_of(node)):
                yield node


def unescaped_html(source: Source) -> Iterator[ast.AST]:
    for call, called in source.calls():
        if called in SAFE or (called.endswith("html.format_html") and not is_constant(call.args[0])):
            yield call


RULES = (
    Rule(
        "sql-from-values",
        "Values are parameters of a statement; what is put into its text are constants.",
        sql_from_values,
        apart_from={
            **dict.fromkeys(PARTITIONS, "names of partitions, which are made of dates and cannot be parameters"),
            **dict.fromkeys(FRAGMENTS, "puts its own constants together, when it is imported"),
            "analytics/forgetting.py": "names of its own models",
            "analytics/pipeline/loading.py": "composed with psycopg.sql, which quotes names",
            "analytics/pipeline/run_lock.py": "a number of its own",
        },
    ),
    Rule(
        "unescaped-html",
        "Templates and `format_html` with a literal escape what they are given.",
        unescaped_html,
        apart_from={"people/pages.py": "a drawing of a QR code: paths and numbers"},
    ),
)
