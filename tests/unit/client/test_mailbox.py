"""The client's calls, and its errors."""

import os
from copy import copy
from datetime import UTC, datetime

import pytest
import requests

from broker_client import BrokerError, Mailbox
from tests.support.mailbox_server import MAILBOX_NAME, MAILBOX_TOKEN, PlayedFailure, PlayedMailbox


def test_messages_come_with_every_byte_of_their_bodies(played: PlayedMailbox, mailbox: Mailbox) -> None:
    bodies = [b'{"cents": 250}', "Gr\u00fc\u00dfe\x00\r\n".encode(), b"\xff\xfe\x00", b""]
    played.put(*bodies)
    fetched = mailbox.fetch(max_messages=4).messages
    assert [message.body for message in fetched] == bodies
    assert fetched[0].json() == {"cents": 250}
    assert played.said("next") == [{"max_messages": 4, "wait_seconds": 0}]


def test_a_message_says_what_it_is(played: PlayedMailbox, mailbox: Mailbox) -> None:
    played.put(b"{}")
    (message,) = mailbox.fetch().messages
    assert (message.receipt, message.id, message.message_id) == ("receipt-1", "dlv_1", 1)
    assert (message.event_type, message.subscription_id) == ("Shop.Order.Paid", 7)
    assert message.published_at == datetime(2026, 11, 22, 1, 2, 3, tzinfo=UTC)
    assert (message.headers, message.content_type) == ({"X-Trace": "1"}, "application/json")
    assert [message.headers.get(name) for name in ("X-Trace", "x-trace", "X-Other")] == ["1", "1", None]
    assert (message.redeliveries, message.possible_duplicate) == (0, False)


def test_nothing_there_is_no_message_and_no_time_to_come_again(mailbox: Mailbox) -> None:
    fetched = mailbox.fetch()
    assert (fetched.messages, fetched.retry_after) == ([], None)


def test_receipts_are_answered_one_by_one(played: PlayedMailbox, mailbox: Mailbox) -> None:
    played.put(b"1", b"2")
    first, second = mailbox.fetch().messages
    results = [*mailbox.extend([first.receipt]), *mailbox.ack([first.receipt, "nonsense"])]
    results += mailbox.nack([second.receipt, first.receipt])
    said = [(result.receipt, result.status, result.code) for result in results]
    assert said[:2] == [("receipt-1", 200, "extended"), ("receipt-1", 200, "acknowledged")]
    assert said[2:4] == [("nonsense", 409, "stale_receipt"), ("receipt-2", 200, "returned")]
    assert said[4:] == [("receipt-1", 409, "stale_receipt")]
    assert [result.held_until > 0 for result in results] == [True, False, False, False, False]
    assert played.acknowledged == [1]


def test_calls_without_receipts_send_no_request(played: PlayedMailbox, mailbox: Mailbox) -> None:
    assert [mailbox.ack([]), mailbox.nack([], not_attempted=True), mailbox.extend([])] == [[], [], []]
    assert played.calls == []


def test_to_extend_for_a_time_of_ones_own_is_said(played: PlayedMailbox, mailbox: Mailbox) -> None:
    mailbox.extend(["receipt-1"], seconds=600)
    mailbox.extend(["receipt-1"], seconds=0)
    mailbox.extend(["receipt-1"])
    receipts = {"receipts": ["receipt-1"]}
    assert played.said("extend") == [receipts | {"seconds": 600}, receipts | {"seconds": 0}, receipts]


def test_the_status_is_as_the_broker_says_it(played: PlayedMailbox, mailbox: Mailbox) -> None:
    played.put(b"1", b"2")
    mailbox.fetch(max_messages=1)
    assert mailbox.status() == {"available": 1, "in_flight": 1}


def test_a_purge_ends_what_is_there(played: PlayedMailbox, mailbox: Mailbox) -> None:
    played.put(b"1", b"2", b"3")
    mailbox.fetch(max_messages=1)
    assert mailbox.purge() == {"cancelled": 2, "in_flight": 1, "complete": True}
    assert (played.said("purge"), mailbox.fetch().messages) == ([{}], [])


def test_the_key_is_sent_although_the_session_has_other_credentials(played: PlayedMailbox) -> None:
    def session() -> requests.Session:
        made = requests.Session()
        made.auth = ("somebody", "else")
        return made

    status = Mailbox(played.url, MAILBOX_NAME, MAILBOX_TOKEN, sessions=session).status()
    assert status == {"available": 0, "in_flight": 0}


def test_a_forked_process_has_a_connection_of_its_own(played: PlayedMailbox) -> None:
    made: list[requests.Session] = []

    def session() -> requests.Session:
        made.append(requests.Session())
        return made[-1]

    mailbox = Mailbox(played.url, MAILBOX_NAME, MAILBOX_TOKEN, sessions=session)
    mailbox.status()
    child = os.fork()
    if child == 0:
        try:
            mailbox.status()
        finally:
            os._exit(len(made))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


@pytest.mark.parametrize("token", ["brk_secret\n", "brk_secret ", "brk_s\u00e9cret", ""])
def test_a_token_that_cannot_be_sent_is_refused_at_once_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="no API key has") as refused:
        Mailbox("http://127.0.0.1:9", MAILBOX_NAME, token).status()
    assert "cret" not in str(refused.value)


ERRORS = [
    {"pointer": "#/max", "code": "min_value", "detail": "At least 1."},
    {"pointer": "#/receipts/0", "code": "invalid", "detail": "Not a string."},
    {"parameter": "page", "code": "unknown", "detail": "Unknown."},
    {"pointer": "#", "code": "invalid", "detail": "What is this?"},
]


@pytest.mark.parametrize(
    ("trouble", "text", "is_transient", "retry_after"),
    [
        (PlayedFailure(404, {"title": "Not found", "detail": "No mailbox."}), "404: No mailbox.", False, None),
        (
            PlayedFailure(400, {"detail": "See errors.", "errors": ERRORS}),
            "400: See errors. max: At least 1.; receipts/0: Not a string.; page: Unknown.; What is this?",
            False,
            None,
        ),
        (PlayedFailure(400, {"title": "Odd", "errors": ["text", {"detail": 5}, None]}), "400: Odd 5", False, None),
        (PlayedFailure(400, {"title": "Odd", "errors": "text"}), "400: Odd", False, None),
        (PlayedFailure(403, {"title": "Forbidden"}), "403: Forbidden", False, None),
        (PlayedFailure(400, ["no problem document"]), "400: Bad Request", False, None),
        (PlayedFailure(302, headers={"Location": "/elsewhere"}), "302: Found", False, None),
        (PlayedFailure(429, {"title": "Too many"}, {"Retry-After": "7"}), "429: Too many", True, 7.0),
        (PlayedFailure(503, {"title": "Later"}, {"Retry-After": "Sat, 01 Jan 2028"}), "503: Later", True, None),
        (PlayedFailure(502), "502: Bad Gateway", True, None),
    ],
)
def test_a_refusal_says_why_and_whether_it_is_transient(
    played: PlayedMailbox,
    mailbox: Mailbox,
    trouble: PlayedFailure,
    text: str,
    is_transient: bool,
    retry_after: float | None,
) -> None:
    played.troubles["next"].append(trouble)
    with pytest.raises(BrokerError) as refused:
        mailbox.fetch()
    for found in (refused.value, copy(refused.value)):  # a copy is made as another process gets it
        assert (str(found), found.is_transient, found.retry_after) == (text, is_transient, retry_after)
