"""`./broker counts`: the size of the code beside the limits in CONTRIBUTING.md."""

import ast
import shutil
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker_project.stack.folders import ROOT

PRODUCT: Final = ("analytics", "benchmarks", "broker_client", "broker_project", "delivery", "subscriptions")
SMALL_MODULE_LINES: Final = 100
MAX_MODULE_LINES: Final = 400
SHORT_FUNCTION_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file of the repository, parsed."""

    path: str
    lines: int
    tree: ast.Module

    @property
    def name(self) -> str:
        """The dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def is_test(self) -> bool:
        """Whether the module is part of the tests."""
        return self.path.startswith("tests/")

    @property
    def app(self) -> str:
        """The top-level package."""
        return self.path.split("/")[0]


@dataclass(frozen=True, slots=True)
class Count:
    """A figure, its limit, and the places that it counts if they can be listed."""

    what: str
    value: int
    limit: int
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the figure as a row of the table."""
        verdict = "ok" if self.value <= self.limit else "over"
        return f"{self.what:<62} {self.value:>7,} {self.limit:>7,}  {verdict}"


def show_counts(*arguments: str) -> int:
    """Print all counts, and with `--places` what they count. Return 1 if any exceeds its limit."""
    counts = list(count(list(modules_of(ROOT))))
    print(f"{'count':<62} {'now':>7} {'limit':>7}")
    for each in counts:
        print(each)
        if "--places" in arguments:
            print(*(f"    {place}" for place in each.places), sep="\n")
    return 0 if all(each.value <= each.limit for each in counts) else 1


def modules_of(repository: Path) -> Iterator[Module]:
    """Yield the Python files known to git, except migrations."""
    listed = subprocess.run(  # noqa: S603 - our own command
        [shutil.which("git") or "/usr/bin/git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    for path in listed.stdout.splitlines():
        file = repository / path
        if path.split("/")[0] in {*PRODUCT, "tests"} and "/migrations/" not in path and file.exists():
            text = file.read_text()
            yield Module(path, text.count("\n"), ast.parse(text))


def count(modules: list[Module]) -> Iterator[Count]:
    """Yield all counts."""
    product = [module for module in modules if not module.is_test]
    tests = [module for module in modules if module.is_test]
    sizes = [module.lines for module in product]
    larger = tuple(f"{module.path} {module.lines}" for module in product if module.lines > MAX_MODULE_LINES)
    functions = [(module, node) for module in product for node in functions_in(module)]
    yield Count("product modules", len(product), 400)
    yield Count("median lines of a product module", round(statistics.median(sizes)), 150)
    yield Count(f"product modules over {MAX_MODULE_LINES} lines", len(larger), 0, larger)
    small = tuple(small_modules_with_one_importer(product))
    yield Count(f"modules with one importer and under {SMALL_MODULE_LINES} lines", len(small), 14, small)
    yield Count("product lines", sum(sizes), 46_000)
    yield Count("functions", len(functions), 2_700)
    hops = tuple(short_functions_with_one_caller(product, functions))
    yield Count(f"functions with one caller and up to {SHORT_FUNCTION_LINES} lines", len(hops), 250, hops)
    yield Count("test files", len(tests), 300)
    yield Count("test lines", sum(module.lines for module in tests), 54_000)
    yield Count("lines of import contracts", lines_of_contracts(ROOT / "pyproject.toml"), 120)
    same = tuple(classes_of_one_name(product))
    yield Count("class names that stand for two things in an app", len(same), 0, same)


def functions_in(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method of a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def small_modules_with_one_importer(modules: list[Module]) -> Iterator[str]:
    """Yield small modules that one other module imports; a package's `__init__` is no importer."""
    importers = importers_of({module.name: module for module in modules})
    for module in modules:
        users = importers[module.name]
        if module.lines < SMALL_MODULE_LINES and len(users) == 1 and not module.path.endswith("__init__.py"):
            yield f"{module.path} {module.lines}, imported by {next(iter(users))}"


def importers_of(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return the paths of the importers of each module."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        if module.path.endswith("__init__.py"):
            continue
        for node in ast.walk(module.tree):
            for name in imported_by(node):
                for target in (name, name.rpartition(".")[0]):
                    if target in modules:
                        importers[target].add(module.path)
                        break
    return importers


def imported_by(node: ast.AST) -> list[str]:
    """Return the dotted names that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def short_functions_with_one_caller(
    modules: list[Module], functions: list[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]
) -> Iterator[str]:
    """Yield functions and methods of a few lines whose name is used once, except overrides of a library's methods."""
    uses = Counter(name for module in modules for name in names_used_in(module))
    defined = Counter(function.name for _, function in functions)
    for module, function in functions:
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        is_dunder = function.name.startswith("__") and function.name.endswith("__")
        is_framework = function.decorator_list or is_dunder or calls_super(function)
        if lines <= SHORT_FUNCTION_LINES and not is_framework and defined[function.name] == uses[function.name] == 1:
            yield f"{module.path}:{function.lineno} {function.name}"


def calls_super(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a method calls the method that it overrides."""
    return f"super().{function.name}(" in ast.unparse(function)


def names_used_in(module: Module) -> Iterator[str]:
    """Yield every name that a module reads, as a name or an attribute."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


def lines_of_contracts(pyproject: Path) -> int:
    """Return how many lines of `pyproject.toml` configure import contracts."""
    inside, lines = False, 0
    for line in pyproject.read_text().splitlines():
        if line.startswith("["):
            inside = "tool.importlinter" in line
        lines += inside
    return lines


def classes_of_one_name(modules: list[Module]) -> Iterator[str]:
    """Yield public class names that an app defines more than once at module level."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[module.app, node.name].append(module.path)
    for (_, name), paths in sorted(places.items()):
        if len(paths) > 1 and name not in {"Command"}:  # the name that Django requires
            yield f"{name}: {', '.join(paths)}"
