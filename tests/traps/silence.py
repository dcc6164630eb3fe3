"""The rule about failures that nobody hears of."""

import ast
from collections.abc import Iterator

from tests.traps.rule import Rule
from tests.traps.sources import Source

ALL = {"Exception", "BaseException"}


def swallowed(source: Source) -> Iterator[ast.AST]:
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and _is_for_all(source, node) and all(map(_is_nothing, node.body)):
            yield node
    for call, called in source.calls():
        if called == "contextlib.suppress" and any(source.dotted(one) in ALL for one in call.args):
            yield call


def _is_for_all(source: Source, handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(one is None or source.dotted(one) in ALL for one in caught)


def _is_nothing(statement: ast.stmt) -> bool:
    """Say whether a statement neither raises nor tells anybody."""
    match statement:
        case ast.Pass() | ast.Continue() | ast.Break() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Return(value=None | ast.Constant()):
            return True
    return False


RULES = (Rule("swallowed", "What we did not expect is raised or logged.", swallowed),)
