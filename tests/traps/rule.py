"""What a rule is."""

import ast
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from broker_project.stack.folders import ROOT
from broker_project.stack.testing import SHIPPED
from tests.traps.sources import Source

APART = {"benchmarks", "broker_client"}
PRODUCT = tuple(f"{package}/" for package in SHIPPED if package not in APART)
"""What runs beside people's events; benchmarks and the client are programs of their own."""
COMPUTING = "Rules compute: no database, network, queue or web"

Finder = Callable[[Source], Iterator[ast.AST]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A trap: how it is found, and where."""

    name: str
    why: str
    """What is wrong, and what to write instead."""
    find: Finder
    within: Sequence[str] = PRODUCT
    apart_from: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of paths where it is no trap, and why."""

    def findings(self, source: Source) -> list[int]:
        """Return the lines of a module that fall into it, wherever the module is."""
        return sorted({getattr(node, "lineno", 0) for node in self.find(source)})

    def applies_to(self, path: str) -> bool:
        """Say whether a module is to be looked at, exceptions included."""
        return path.startswith(tuple(self.within))

    def exception_for(self, path: str) -> str | None:
        """Return the exception that a module is, None for most."""
        return next((begin for begin in self.apart_from if path.startswith(begin)), None)


def calls_of(*names: str) -> Finder:
    """Return what finds the calls of these, and of what is under them where they end with a dot."""

    def find(source: Source) -> Iterator[ast.AST]:
        for call, called in source.calls():
            if called in names or called.startswith(tuple(name for name in names if name.endswith("."))):
                yield call

    return find


@cache
def rule_modules() -> tuple[str, ...]:
    """Return the paths of the modules that only compute, as the import contracts name them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (modules,) = (contract["source_modules"] for contract in contracts if contract["name"] == COMPUTING)
    paths = [module.replace(".", "/") for module in modules]
    return tuple(f"{path}/" if (ROOT / path).is_dir() else f"{path}.py" for path in paths)
