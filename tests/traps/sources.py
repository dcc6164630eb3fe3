"""A module as its syntax tree, and what the names in it stand for."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from broker_project.stack.folders import ROOT
from broker_project.stack.testing import SHIPPED

CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


@dataclass(frozen=True)
class Source:
    """One module."""

    path: str
    """From the top of the repository."""
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [*ast.walk(ast.parse(self.text))]

    def nodes_of_functions(self) -> Iterator[ast.AST]:
        """Yield what runs only when something is called, each once."""
        outer = [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
        yield from {id(node): node for one in outer for node in ast.walk(one)}.values()

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Yield every call, and what is called."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                yield node, self.dotted(node.func)

    def dotted(self, node: ast.AST) -> str:
        """Return what an expression stands for as far as imports tell: `datetime.datetime.now`."""
        match node:
            case ast.Name(id=name):
                return self._origins.get(name, name)
            case ast.Attribute(value=owner, attr=name):
                return f"{self.dotted(owner)}.{name}"
            case ast.Call(func=called):
                return f"{self.dotted(called)}()"
        return ""

    @cached_property
    def _origins(self) -> dict[str, str]:
        return {one.name: one.stands_for for one in self.imports()}

    def imports(self) -> Iterator["Import"]:
        """Yield everything that is imported."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for one in node.names:
                    top = one.name.partition(".")[0]
                    yield Import(node, one.name, one.asname or top, one.name if one.asname else top)
            elif isinstance(node, ast.ImportFrom):
                for one in node.names:
                    origin = f"{node.module}.{one.name}"
                    yield Import(node, origin, one.asname or one.name, origin)


@dataclass(frozen=True, slots=True)
class Import:
    """What is imported, the name that it is bound to, and what that name stands for."""

    node: ast.AST
    origin: str
    name: str
    stands_for: str


def words_in(*nodes: ast.AST) -> set[str]:
    """Return the words that names in expressions are made of: `self.signing_secret` has `self`, `signing`, `secret`."""
    names = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                names.add(name)
    return {word for name in names for word in name.lower().split("_")}


def is_constant(node: ast.AST) -> bool:
    """Say whether an expression is a literal or named as a constant."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return bool(CONSTANT.fullmatch(name))
    return False


def shipped(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of every file that ships and matches."""
    for package in SHIPPED:
        for path in sorted((ROOT / package).rglob(pattern)):
            yield str(path.relative_to(ROOT)), Path(path).read_text()
