"""A stack does not run, and nothing is done beside it, with a secret key that cannot open what it has sealed."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from broker_project.stack import stacks, up
from broker_project.stack.folders import Kept, StackFolder, locked
from broker_project.stack.secret_keys import OtherSecretKey, hold_against_last_start, note_sealing, note_start

FIRST = "the key of the last start"
OTHER = "a key that it does not know"
NAMES = ("BROKER_SECRET_KEY", "BROKER_SECRET_KEY_FALLBACKS", "DATABASE_URL")


class Given:
    """What a terminal has set, for the commands that follow in it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(self, variables: Mapping[str, str]) -> None:
        for name in NAMES:
            self._patch.delenv(name, raising=False)
        for name, value in variables.items():
            self._patch.setenv(name, value)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(monkeypatch)


def start(folder: Path) -> None:
    """Do with the keys what a start does."""
    kept = Kept(StackFolder(folder).settings, print)
    hold_against_last_start(kept)
    note_start(kept)
    note_sealing(kept)


def in_one_line(refusal: pytest.ExceptionInfo[OtherSecretKey]) -> str:
    message = str(refusal.value)
    assert "\n" not in message
    assert FIRST not in message
    assert OTHER not in message
    return message


KEPT: dict[str, str] = {}
"""Nothing is set: the stack chooses a key and keeps it."""


@pytest.mark.parametrize(
    ("last", "next_one"),
    [
        (KEPT, KEPT),
        ({"BROKER_SECRET_KEY": FIRST}, {"BROKER_SECRET_KEY": FIRST}),
        (
            {"BROKER_SECRET_KEY": FIRST},
            {"BROKER_SECRET_KEY": OTHER, "BROKER_SECRET_KEY_FALLBACKS": f"one before,{FIRST}"},
        ),
        ({"BROKER_SECRET_KEY": FIRST}, {"BROKER_SECRET_KEY": OTHER, "DATABASE_URL": "postgres://u:p@own/broker"}),
    ],
    ids=["kept", "the same", "the last as a fallback", "another database"],
)
def test_a_stack_starts_where_what_is_sealed_can_be_opened(
    last: Mapping[str, str], next_one: Mapping[str, str], given: Given, tmp_path: Path
) -> None:
    given(last)
    start(tmp_path)
    given(next_one)
    start(tmp_path)


@pytest.mark.parametrize(
    ("last", "next_one", "says"),
    [
        (KEPT, {"BROKER_SECRET_KEY": OTHER}, "BROKER_SECRET_KEY is not that of the last start"),
        ({"BROKER_SECRET_KEY": FIRST}, KEPT, "BROKER_SECRET_KEY is not set, and the key kept in "),
        (
            {"BROKER_SECRET_KEY": FIRST},
            {"BROKER_SECRET_KEY": OTHER, "BROKER_SECRET_KEY_FALLBACKS": "another,"},
            "BROKER_SECRET_KEY is not that of the last start",
        ),
        (
            {"BROKER_SECRET_KEY": FIRST, "DATABASE_URL": "postgres://u:p@own/broker"},
            {"BROKER_SECRET_KEY": OTHER, "DATABASE_URL": "postgres://u:changed@own/broker?sslmode=require"},
            "BROKER_SECRET_KEY is not that of the last start",
        ),
    ],
    ids=["instead of the kept one", "kept instead", "not among the fallbacks", "the same database"],
)
def test_a_stack_does_not_start_where_it_cannot(
    last: Mapping[str, str], next_one: Mapping[str, str], says: str, given: Given, tmp_path: Path
) -> None:
    given(last)
    start(tmp_path)
    given(next_one)
    with pytest.raises(OtherSecretKey) as refusal, stacks.running(tmp_path):
        pass
    assert in_one_line(refusal).startswith(says)
    assert not (tmp_path / "postgres").exists()


def test_the_key_that_is_refused_does_not_become_the_last(given: Given, tmp_path: Path) -> None:
    given({"BROKER_SECRET_KEY": FIRST})
    start(tmp_path)
    given({"BROKER_SECRET_KEY": OTHER})
    with pytest.raises(OtherSecretKey):
        start(tmp_path)
    given({"BROKER_SECRET_KEY": FIRST})
    start(tmp_path)


def test_a_key_of_the_users_own_is_not_kept(given: Given, tmp_path: Path) -> None:
    given({"BROKER_SECRET_KEY": FIRST, "DATABASE_URL": "postgres://u:pass-word@own/broker"})
    start(tmp_path)
    kept = StackFolder(tmp_path).settings.read_text()
    assert (FIRST in kept, "pass-word" in kept, '"secret key"' in kept) == (False, False, False)


@pytest.fixture
def own_stores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mapping[str, str]:
    """The folder of `./broker up`, for a stack beside stores that are there."""
    monkeypatch.setattr(up, "STATE", tmp_path)
    Kept(StackFolder(tmp_path).settings, print).port("web")
    return {"DATABASE_URL": "postgres://user:password@127.0.0.1/broker"}


def test_beside_a_stack_that_runs_nothing_is_done_with_another_key(
    given: Given, tmp_path: Path, own_stores: Mapping[str, str]
) -> None:
    new = {**own_stores, "BROKER_SECRET_KEY": FIRST, "BROKER_SECRET_KEY_FALLBACKS": "the one before"}
    given(new)
    with locked(StackFolder(tmp_path).lock):
        note_start(Kept(StackFolder(tmp_path).settings, print))
        given(own_stores)
        with pytest.raises(OtherSecretKey) as refusal:
            up.manage("rotate_keys", "--check")
        assert "and the key kept in" in in_one_line(refusal)
        assert "as for ./broker up" in in_one_line(refusal)
        given(new)
        assert up.manage("check") == 0


def test_for_a_stack_that_has_stopped_nothing_is_done_with_another_key(
    given: Given, tmp_path: Path, own_stores: Mapping[str, str]
) -> None:
    given({**own_stores, "BROKER_SECRET_KEY": FIRST})
    start(tmp_path)
    given({**own_stores, "BROKER_SECRET_KEY": OTHER, "BROKER_SECRET_KEY_FALLBACKS": FIRST})
    with pytest.raises(OtherSecretKey) as refusal:
        up.manage("rotate_keys")
    assert in_one_line(refusal).startswith("BROKER_SECRET_KEY is not that of the last start: set ")
    given({**own_stores, "BROKER_SECRET_KEY": FIRST})
    assert up.manage("check") == 0
