"""`./broker counts`: the size of the code beside the limits in CONTRIBUTING.md."""

import ast
import shutil
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from broker_project.stack.folders import ROOT

PRODUCT: Final = ("analytics", "benchmarks", "broker_client", "broker_project", "delivery", "subscriptions")
SMALL_MODULE_LINES: Final = 100
MAX_MODULE_LINES: Final = 400
SHORT_FUNCTION_LINES: Final = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file of the repository, parsed."""

    path: str
    lines: int
    nodes: Sequence[ast.AST]
    """All of its syntax tree."""
    classes: Sequence[str]
    """Public classes at module level."""

    @property
    def name(self) -> str:
        """The dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def show_counts(*arguments: str) -> int:
    """Print all counts, and with `--places` what they count. Return 1 if any exceeds its limit."""
    counts = list(count(list(modules_of_repository())))
    print(f"{'count':<62} {'now':>7} {'limit':>7}")
    for what, value, limit, places in counts:
        print(f"{what:<62} {value:>7,} {limit:>7,}  {'ok' if value <= limit else 'over'}")
        if arguments:
            print("".join(f"    {place}\n" for place in places), end="")
    return 1 if any(value > limit for _, value, limit, _ in counts) else 0


def modules_of_repository() -> Iterator[Module]:
    """Yield the Python files known to git, except migrations."""
    git = shutil.which("git") or "/usr/bin/git"
    command = (git, "ls-files", "--cached", "--others", "--exclude-standard", "*.py")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - our own command
    for path in listed.stdout.splitlines():
        file = ROOT / path
        if path.split("/")[0] in {*PRODUCT, "tests"} and "/migrations/" not in path and file.exists():
            text = file.read_text()
            tree = ast.parse(text)
            classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
            yield Module(path, text.count("\n"), [*ast.walk(tree)], classes)


def count(modules: Sequence[Module]) -> Iterator[tuple[str, int, int, Sequence[str]]]:
    """Yield what is counted, its value, its limit, and the places that it counts if they can be listed."""
    tests = [module for module in modules if module.path.startswith("tests/")]
    product = [module for module in modules if module not in tests]
    sizes = [module.lines for module in product]
    larger = [f"{module.path} {module.lines}" for module in product if module.lines > MAX_MODULE_LINES]
    small, hops, same = (list(find(product)) for find in (small_modules, hops_in, classes_of_one_name))
    yield "product modules", len(product), 400, ()
    yield "median lines of a product module", round(statistics.median(sizes)), 150, ()
    yield f"product modules over {MAX_MODULE_LINES} lines", len(larger), 0, larger
    yield f"modules with one importer and under {SMALL_MODULE_LINES} lines", len(small), 14, small
    yield "product lines", sum(sizes), 46_000, ()
    yield "functions", sum(isinstance(node, Function) for module in product for node in module.nodes), 2_700, ()
    yield f"functions with one caller and up to {SHORT_FUNCTION_LINES} lines", len(hops), 250, hops
    yield "test files", len(tests), 300, ()
    yield "test lines", sum(module.lines for module in tests), 54_000, ()
    yield "lines of import contracts", lines_of_contracts(), 120, ()
    yield "class names that stand for two things in an app", len(same), 0, same


def small_modules(modules: Sequence[Module]) -> Iterator[str]:
    """Yield small modules that one other module imports; a package's `__init__` is no importer."""
    names = {module.name for module in modules}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        if not module.path.endswith("__init__.py"):
            for name in (name for node in module.nodes for name in imported_by(node)):
                importers[name if name in names else name.rpartition(".")[0]].add(module.path)
    for module in modules:
        users = importers[module.name]
        if module.lines < SMALL_MODULE_LINES and len(users) == 1 and not module.path.endswith("__init__.py"):
            yield f"{module.path} {module.lines}, imported by {next(iter(users))}"


def imported_by(node: ast.AST) -> list[str]:
    """Return the dotted names that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def hops_in(modules: Sequence[Module]) -> Iterator[str]:
    """Yield functions and methods of a few lines whose name is used once, except overrides of a library's methods."""
    nodes = [(module, node) for module in modules for node in module.nodes]
    uses = Counter[str]()
    for _, node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            uses[node.id if isinstance(node, ast.Name) else node.attr] += 1
    functions = [(module, node) for module, node in nodes if isinstance(node, Function)]
    defined = Counter(function.name for _, function in functions)
    for module, function in functions:
        name, lines = function.name, (function.end_lineno or function.lineno) - function.lineno + 1
        is_framework = function.decorator_list or name.startswith("__") or f"super().{name}(" in ast.unparse(function)
        if lines <= SHORT_FUNCTION_LINES and not is_framework and defined[name] == uses[name] == 1:
            yield f"{module.path}:{function.lineno} {name}"


def lines_of_contracts() -> int:
    """Return how many lines of `pyproject.toml` configure import contracts."""
    inside, lines = False, 0
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if line.startswith("["):
            inside = "tool.importlinter" in line
        lines += inside
    return lines


def classes_of_one_name(modules: Sequence[Module]) -> Iterator[str]:
    """Yield public class names that an app defines more than once at module level."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in modules:
        for name in module.classes:
            places[module.path.split("/")[0], name].append(module.path)
    for (_, name), paths in sorted(places.items()):
        if len(paths) > 1 and name != "Command":  # the name that Django requires
            yield f"{name}: {', '.join(paths)}"
