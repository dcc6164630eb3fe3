"""How many cores a process may use: all, those of a cpuset, or as many as a quota of CPU time gives."""

import os
from pathlib import Path

import pytest

from broker_project.core.cores import usable_cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups in a folder, on a machine with 64 cores."""
    monkeypatch.setattr("broker_project.core.cores.CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr("broker_project.core.cores.OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "system.slice" / "broker.service").mkdir(parents=True)
    (tmp_path / "own").write_text("9:name=systemd:/\n0::/system.slice/broker.service\n")
    return tmp_path


@pytest.mark.parametrize(
    ("quotas", "cores"),
    [
        ({}, 64),
        ({"": "max 100000"}, 64),
        ({"": "200000 100000"}, 2),
        ({"": "6400000 50000"}, 64),
        ({"system.slice/broker.service": "10000 100000"}, 1),
        ({"system.slice": "250000 100000", "system.slice/broker.service": "max 100000"}, 3),
        ({"system.slice": "250000 100000", "system.slice/broker.service": "150000 100000"}, 2),
    ],
)
def test_the_smallest_quota_limits_the_cores(quotas: dict[str, str], cores: int, groups: Path) -> None:
    for group, quota in quotas.items():
        (groups / group / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores() == cores


@pytest.mark.parametrize("own", [None, "", "1:cpu:/docker/1\n"])
def test_cores_are_those_of_the_affinity_without_control_groups_of_version_2(own: str | None, groups: Path) -> None:
    (groups / "own").unlink()
    if own is not None:
        (groups / "own").write_text(own)
    assert usable_cores() == 64
