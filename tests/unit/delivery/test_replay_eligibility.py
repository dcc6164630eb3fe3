"""What can be sent again by hand, and the reason that is given for the rest."""

from typing import Any

import pytest

from delivery.replay.eligibility import Sent, resubmit_refusal
from delivery.statuses import DeliveryStatus

pytestmark = pytest.mark.behaviour("5.8")

S = DeliveryStatus


@pytest.mark.parametrize(
    ("status", "begins"),
    [
        (S.REJECTED, None),
        (S.FAILED, None),
        (S.EXPIRED, None),
        (S.NOT_SUPPORTED, None),
        (S.HELD, "It is HELD: release it instead."),
        (S.PENDING, "It is PENDING, and will be sent. Wait for that, or cancel all"),
        (S.IN_FLIGHT, "It is IN_FLIGHT, and will be sent. Wait for that, or cancel all"),
        (S.DELIVERED, "It is DELIVERED: a replay sends it again."),
        (S.CANCELLED, "It is CANCELLED: a replay sends it again."),
        (S.REDUNDANT, "Another endpoint of its group took the message."),
    ],
)
def test_each_status_can_be_resubmitted_or_says_what_to_do_instead(status: DeliveryStatus, begins: str | None) -> None:
    refused = resubmit_refusal(Sent(status, "TOPIC"))
    assert refused is None if begins is None else refused and refused.startswith(begins)


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"kind": None}, "deleted"),
        ({"kind": "SYNC"}, "synchronous"),
        ({"is_active": False}, "INACTIVE"),
        ({"kind": "QUEUE", "is_group_open": True}, "Others of its group"),
        ({"kind": "QUEUE", "is_taken": True}, "Another endpoint"),
        ({"kind": "QUEUE"}, ""),
    ],
)
def test_the_destination_decides_too(facts: dict[str, Any], word: str) -> None:
    refused = resubmit_refusal(Sent(**({"status": S.REJECTED, "kind": "TOPIC"} | facts)))
    assert refused and word in refused if word else refused is None


@pytest.mark.behaviour("6.8")
@pytest.mark.parametrize(
    ("status", "is_last", "word"),
    [
        (S.REJECTED, True, ""),
        (S.NOT_SUPPORTED, True, ""),
        (S.EXPIRED, True, ""),
        (S.CANCELLED, True, ""),
        (S.CANCELLED, False, "resubmitted already"),
        (S.REJECTED, False, "resubmitted already"),
        (S.PENDING, True, "It is PENDING, and will be sent."),
        (S.DELIVERED, True, "gets once"),
    ],
)
def test_the_reply_to_a_callback_can_be_resubmitted_until_it_is_taken(
    status: DeliveryStatus, is_last: bool, word: str
) -> None:
    refused = resubmit_refusal(Sent(status, None, is_reply=True, is_last=is_last))
    assert refused and word in refused if word else refused is None
