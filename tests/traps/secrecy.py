"""Rules about what nobody else is to know."""

import ast
from collections.abc import Iterator

from tests.traps.rule import Rule, calls_of, rule_modules
from tests.traps.sources import Source, is_constant, words_in
from tests.traps.statements import parts_of

LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log", "msg", "bind"}
UNTOLD = {
    *("authorization", "bodies", "body", "cookie", "cookies", "credentials", "excerpt", "header", "headers"),
    *("password", "passwords", "payload", "payloads", "secret", "secrets", "token", "tokens"),
}
KNOWN_TO_FEW = {"digest", "hmac", "password", "secret", "signature", "token"}


def untold_in_logs(source: Source) -> Iterator[ast.AST]:
    """Find what logs a body or a secret by its name, and events that something is put into."""
    for call, called in source.calls():
        owner, _, level = called.rpartition(".")
        if level not in LEVELS or not owner.endswith(("log", "logger", "logging", "get_logger()")):
            continue
        if (call.args and parts_of(call.args[0])) or UNTOLD & words_in(*call.args, *call.keywords):
            yield call


def failures_as_texts(source: Source) -> Iterator[ast.AST]:
    """Find what logs the text of what was caught: of a failure itself the log knows what quotes nobody's values."""
    caught = {node.name for node in source.nodes if isinstance(node, ast.ExceptHandler) and node.name}
    for call, called in source.calls():
        if (
            called.rpartition(".")[2] in LEVELS
            and "log" in called
            and any(_is_text_of(caught, one) for one in _within(call))
        ):
            yield call


def _within(call: ast.Call) -> Iterator[ast.AST]:
    for argument in (*call.args, *call.keywords):
        yield from ast.walk(argument)


def _is_text_of(caught: set[str], node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name("str" | "repr"), args=[ast.Name(name)]) | ast.FormattedValue(value=ast.Name(name)):
            return name in caught
    return False


def compared_secrets(source: Source) -> Iterator[ast.AST]:
    for node in source.nodes:
        match node:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                if KNOWN_TO_FEW & (_said_by(left) | _said_by(right)) and not (is_constant(left) or is_constant(right)):
                    yield node


def _said_by(node: ast.AST) -> set[str]:
    """Return the words of what is compared; what a call is given by name is not what it returns."""
    return words_in(node.func, *node.args) if isinstance(node, ast.Call) else words_in(node)


def weak_randomness(source: Source) -> Iterator[ast.AST]:
    for one in source.imports():
        if one.origin.partition(".")[0] == "random" and one.origin != "random.SystemRandom":
            yield one.node


def settings_in_rules(source: Source) -> Iterator[ast.AST]:
    for one in source.imports():
        if one.origin.startswith(("django.conf", "environ", "os.environ", "os.getenv")):
            yield one.node
    yield from calls_of("os.getenv", "os.environ.get")(source)


def untold_in_messages(source: Source) -> Iterator[ast.AST]:
    """Messages of the admin lie in a cookie or a session until they have been shown."""
    for call, called in source.calls():
        is_message = called.endswith(".message_user") or called.startswith("django.contrib.messages.")
        if is_message and UNTOLD & words_in(*call.args, *call.keywords):
            yield call


RULES = (
    Rule("untold-in-logs", "Logs are constant events with ids, never bodies, headers or secrets.", untold_in_logs),
    Rule(
        "failure-as-text",
        "PostgreSQL quotes the row that it refused: log the failure itself, of which only what is safe is told.",
        failures_as_texts,
    ),
    Rule(
        "compared-secret",
        "`==` tells by its time how much of a guess was right: hmac.compare_digest.",
        compared_secrets,
        apart_from={"broker_project/stack/bootstrap.py": "the digest of a lock file is no secret"},
    ),
    Rule(
        "weak-randomness",
        "What others can foresee makes no secret: `secrets`.",
        weak_randomness,
        apart_from={
            "broker_project/stack/demo/": "made-up events, the same in each run",
            "delivery/driving/": "in which order endpoints and waits are tried",
        },
    ),
    Rule("settings-in-rules", "Rules take what they need as arguments.", settings_in_rules, within=rule_modules()),
    Rule(
        "untold-in-messages",
        "A message is stored until it is shown: show secrets on the page itself.",
        untold_in_messages,
    ),
)
