"""The rules in semgrep/ look at every package, and no exception outlives what it was made for."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_project.stack.folders import ROOT
from broker_project.stack.test_command import BESIDE_EVENTS, SHIPPED, TRAPS

RULES: dict[str, dict[str, Any]] = {
    rule["id"]: rule
    for file in sorted((ROOT / TRAPS).glob("*.yaml"))
    for rule in yaml.safe_load(file.read_text())["rules"]
}


def test_every_package_is_looked_at() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert sorted(SHIPPED) == contracts["root_packages"]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_exception_is_for_something_that_is_there(rule: dict[str, Any]) -> None:
    exceptions = rule.get("paths", {}).get("exclude", [])
    assert [path for path in exceptions if not _is_there(path)] == []


def _is_there(path: str) -> bool:
    if path.startswith("/"):
        return any(ROOT.glob(path[1:]))
    return any(found for package in BESIDE_EVENTS for found in Path(ROOT / package).rglob(path))
