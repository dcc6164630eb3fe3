"""What ships falls into none of our own traps, and each rule finds what it is for and nothing else."""

import re
import tomllib
from pathlib import Path

import pytest

from broker_project.stack.folders import ROOT
from broker_project.stack.testing import SHIPPED
from tests.traps import clocks, reaching_out, secrecy, silence, statements
from tests.traps.rule import Rule
from tests.traps.sources import Source, shipped

RULES = {rule.name: rule for module in (clocks, reaching_out, secrecy, silence, statements) for rule in module.RULES}
EXAMPLES = Path(__file__).parents[1] / "traps" / "examples"
FOUND = re.compile(r"#\s*trap$")
UNESCAPED = re.compile(r"\|\s*safe\b|autoescape\s+off|\|\s*safeseq\b")

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    """Everything that ships."""
    return [Source(path, text) for path, text in shipped("*.py")]


def test_every_package_is_looked_at() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert sorted(SHIPPED) == contracts["root_packages"]


@every_rule
def test_a_rule_finds_the_lines_marked_and_no_others(rule: Rule) -> None:
    text = (EXAMPLES / f"{rule.name}.txt").read_text()
    marked = [number for number, line in enumerate(text.splitlines(), 1) if FOUND.search(line)]
    assert marked
    assert len(marked) < len(text.splitlines()) / 2, "there are lines that it leaves alone"
    assert rule.findings(Source("", text)) == marked


@every_rule
def test_nothing_that_ships_falls_into_a_trap(rule: Rule, sources: list[Source]) -> None:
    looked_at = [one for one in sources if rule.applies_to(one.path) and not rule.exception_for(one.path)]
    assert looked_at
    fallen = [f"{one.path}:{line}" for one in looked_at for line in rule.findings(one)]
    assert not fallen, rule.why


@every_rule
def test_every_exception_is_needed(rule: Rule, sources: list[Source]) -> None:
    needed = {rule.exception_for(one.path) for one in sources if rule.findings(one)} - {None}
    assert needed == rule.apart_from.keys()


def test_no_template_switches_escaping_off() -> None:
    templates = dict(shipped("*.html"))
    assert templates
    assert not [path for path, text in templates.items() if UNESCAPED.search(text)]
