"""Scripts are large: each is read once, not with every page, and few are kept (contract 8.1)."""

import pytest

from delivery.webhook import destination
from delivery.webhook.destination import destinations_of
from subscriptions.models import Subscription
from tests.support.factories import subscription

pytestmark = pytest.mark.django_db


def scripted(count: int, script: str) -> list[int]:
    """Return the ids of new subscriptions that have the script."""
    ids = [subscription().pk for _ in range(count)]
    Subscription.objects.filter(pk__in=ids).update(script=script)
    return ids


def test_a_script_is_read_once_and_shared() -> None:
    plain, ids = subscription().pk, scripted(3, "// " + "x" * 60_000)
    first = destinations_of([plain, *ids])
    assert {number: bool(one.script) for number, one in first.items()} == {plain: False} | dict.fromkeys(ids, True)
    assert len({id(first[number].script) for number in ids}) == 1
    again = destinations_of([plain, *ids])
    assert all(again[number] is first[number] for number in again), "the same ones: what is known of them is kept"


def test_a_changed_script_is_read_anew() -> None:
    (number,) = scripted(1, "1")
    for script in ("2", "", "3"):
        destinations_of([number])
        Subscription.objects.filter(pk=number).update(script=script)
        assert destinations_of([number])[number].script == script


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "SCRIPT_CHARACTERS", 1000)
    monkeypatch.setattr(destination, "_scripts", destination._Scripts())
    ids = scripted(30, "x" * 100)
    for _ in range(2):
        found = destinations_of(ids)
        assert {len(one.script) for one in found.values()} == {100}
        assert len(destination._scripts._kept) == 10
    assert destinations_of([0]) == {}
