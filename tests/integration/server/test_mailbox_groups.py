"""Calls of one mailbox that are answered in groups get the same answers as one after the other."""

import asyncio
import json
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from broker_project.server.request_groups import RequestGroups, group_of
from broker_project.stack.load.wait import wait_until
from delivery.mailbox import acknowledge, fetch_messages
from delivery.mailbox.acknowledge import AcknowledgeCall, ReceiptResult, acknowledge_together
from delivery.mailbox.fetch_messages import FetchCall, fetch, fetch_together
from delivery.mailbox.long_poll import WAITING
from delivery.mailbox.receipts import FetchedMessage, MailboxRef, Receipt
from delivery.models import Delivery
from subscriptions.credentials.tokens import recent_tokens
from subscriptions.models import Subscription
from tests.support import factories
from tests.support.broker import publish_bodies, publish_numbered, statuses
from tests.support.database import do_and_disconnect, empty_database
from tests.support.mailboxes import fetch_all, pulled_subscription
from tests.support.request_groups import Call, answer_group, run
from tests.support.spies import spied

pytestmark = pytest.mark.django_db(transaction=True)

STORED = 12
FETCHED = 6
FORGED = "A" * 32


class Mailbox:
    """A mailbox with messages, of which some are fetched, and a key for it."""

    def __init__(self, name: str) -> None:
        self.pulled: Subscription = pulled_subscription(factories.subscriber(name))
        self._token = factories.api_key(self.pulled.subscriber)[1]
        publish_numbered(self.pulled.event_type, STORED)
        fetched = self.messages_in([self.call("next", max_messages=FETCHED)])
        self.receipts = [one["receipt"] for one in fetched]

    def call(self, what: str, **said: Any) -> Call:
        return Call(self._token, f"mailboxes/{self.pulled.subscriber.name}/{what}", json.dumps(said).encode())

    def messages_in(self, calls: list[Call]) -> list[dict[str, Any]]:
        """Answer a group; return the messages of all answers."""
        answer_group(calls)
        return [one for call in calls if call.status == 200 for one in json.loads(call.body)["messages"]]


acknowledged = st.lists(st.integers(-1, FETCHED - 1), max_size=4)
"""Positions of receipts; -1 is a forged one."""
fetches = st.sampled_from([1, 2, 4, 0, "5"])


def comparable(call: Call) -> tuple[Any, ...]:
    """Return an answer without receipts and ids, which differ between mailboxes."""
    said = json.loads(call.body) if call.body else {}
    messages = [(one["body"], one["redeliveries"]) for one in said.pop("messages", [])]
    codes = [(one["status"], one["code"]) for one in said.pop("results", [])]
    return call.status, call.headers, messages, codes, said.get("errors")


@pytest.mark.behaviour("9.1", "9.2", "9.4")
@given(asked=st.lists(acknowledged | fetches, min_size=1, max_size=8))
@hypothesis_settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_group_is_answered_as_one_call_after_the_other(asked: list[Any]) -> None:
    empty_database()
    answers: list[Any] = []
    for name in ("together", "alone"):
        mailbox = Mailbox(name)
        receipts = [*mailbox.receipts, FORGED]
        calls = [
            mailbox.call("ack", receipts=[receipts[n] for n in one])
            if isinstance(one, list)
            else mailbox.call("next", max_messages=one)
            for one in asked
        ]
        if name == "together":
            answer_group(calls)
        else:
            for call in calls:
                call.send_alone()
        answers.append([comparable(call) for call in calls])
        answers.append([Counter(statuses(mailbox.pulled))])
    together, stored_together, alone, stored_alone = answers
    assert together == alone
    assert stored_together == stored_alone


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox("shop")


@pytest.mark.behaviour("9.1")
def test_clients_of_a_group_get_different_messages_with_one_fetch(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = spied(monkeypatch, fetch_messages, "fetch", lambda _, max_messages: max_messages)
    messages = mailbox.messages_in([mailbox.call("next", max_messages=2) for _ in range(3)])
    assert [one["body"] for one in messages] == [str(n) for n in range(FETCHED, STORED)]
    assert fetched == [6]


def test_a_fetch_that_fails_costs_no_call_that_has_messages(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_at_last(ref: MailboxRef, *, max_messages: int) -> list[FetchedMessage]:
        if max_messages < 30:
            raise OperationalError
        return fetch(ref, max_messages=max_messages)

    monkeypatch.setattr(fetch_messages, "fetch", fails_at_last)
    calls = [mailbox.call("next", max_messages=10) for _ in range(3)]
    messages = mailbox.messages_in(calls)
    assert [one["body"] for one in messages] == [str(n) for n in range(FETCHED, STORED)]
    assert [call.status for call in calls] == [200, 503, 503]


@pytest.mark.behaviour("9.1", "9.2")
def test_in_a_group_the_key_of_another_subscriber_gets_and_ends_nothing(mailbox: Mailbox) -> None:
    stranger = Mailbox("stranger")
    stranger.pulled.subscriber.name = mailbox.pulled.subscriber.name
    foreign = [stranger.call("next"), stranger.call("ack", receipts=mailbox.receipts)]
    own = mailbox.call("next", max_messages=1)
    answer_group([foreign[0], own, foreign[1]])
    assert ([call.status for call in foreign], own.status) == ([404, 404], 200)
    assert Counter(statuses(mailbox.pulled)) == {"IN_FLIGHT": FETCHED + 1, "PENDING": STORED - FETCHED - 1}


@pytest.mark.behaviour("9.1")
def test_clients_of_a_group_share_large_messages_of_which_a_fetch_returns_few(mailbox: Mailbox) -> None:
    fetch_all(mailbox.pulled)
    large = [b"%d" % number * 600_000 for number in range(4)]
    publish_bodies(mailbox.pulled.event_type, *large)
    calls = [mailbox.call("next", max_messages=50) for _ in range(6)]
    messages = mailbox.messages_in(calls)
    assert [one["body"].encode() for one in messages] == large
    assert [call.status for call in calls] == [200] * 4 + [204] * 2


@pytest.mark.behaviour("9.1", "9.2")
def test_a_group_does_no_more_at_once_than_one_call_may(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []
    ended: list[int] = []

    def fetch_one(_: MailboxRef, *, max_messages: int) -> list[Any]:
        wanted.append(max_messages)
        return ["message"]

    def end(_: int, receipts: list[Receipt]) -> dict[Receipt, ReceiptResult]:
        ended.append(len(receipts))
        return {}

    monkeypatch.setattr(fetch_messages, "fetch", fetch_one)
    monkeypatch.setattr(acknowledge, "acknowledge", end)
    fetch_together([FetchCall(MailboxRef(1, is_ordered=False), number) for number in (60, 40, 1, 100)])
    receipts = [Receipt(number, 1) for number in range(700)]
    acknowledge_together([AcknowledgeCall(1, some) for some in (receipts[:400], receipts[400:], receipts)])
    assert wanted == [100, 41, 1, 100]
    assert ended == [700, 700]


@pytest.mark.behaviour("9.2")
def test_a_receipt_that_two_calls_of_a_group_acknowledge_is_acknowledged_to_both(mailbox: Mailbox) -> None:
    calls = [mailbox.call("ack", receipts=mailbox.receipts[:2]) for _ in range(2)]
    answer_group(calls)
    assert [comparable(call)[3] for call in calls] == [[(200, "acknowledged")] * 2] * 2
    assert Delivery.objects.filter(status="DELIVERED").count() == 2


@pytest.mark.behaviour("9.1")
def test_a_call_that_waits_for_messages_holds_up_no_other(mailbox: Mailbox) -> None:
    fetch_all(mailbox.pulled)
    poll, other = mailbox.call("next", wait_seconds=20), mailbox.call("ack", receipts=mailbox.receipts)

    async def send(groups: RequestGroups) -> None:
        waiting = groups.answered(poll)
        await groups.answered(other)
        await asyncio.to_thread(wait_until, WAITING.counts)
        assert not waiting.done()
        await asyncio.to_thread(do_and_disconnect, partial(publish_numbered, mailbox.pulled.event_type, 1))
        await waiting

    run(send)
    assert (poll.status, other.status) == (200, 200)


TOKEN = "brk_" + "a" * 43
GROUPS = {
    "/api/v1/events/Order.placed": "/api/v1/events",
    "/api/v1/events": None,
    "/api/v1/mailboxes/shop/next": "/api/v1/mailboxes/shop",
    "/api/v1/mailboxes/shop/ack": "/api/v1/mailboxes/shop",
    "/api/v1/mailboxes/shop/purge": None,
    "/api/v1/subscriptions": None,
}


@pytest.mark.parametrize("path", GROUPS)
def test_requests_with_a_known_key_that_do_the_same_are_answered_together(path: str) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    recent_tokens.discard(hash(TOKEN))
    assert group_of(SimpleNamespace(method="POST", path=path, headers=headers)) is None
    recent_tokens.add(hash(TOKEN))
    assert group_of(SimpleNamespace(method="POST", path=path, headers=headers)) == GROUPS[path]
    assert group_of(SimpleNamespace(method="GET", path=path, headers=headers)) is None
