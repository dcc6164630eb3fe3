"""Acknowledge, return and extend messages by receipt, and the result of each receipt (contract 9.2, 9.4)."""

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Final, LiteralString, NamedTuple

from django.db import transaction

from broker_project.core.db import array, rows
from delivery.dispatch import notify
from delivery.mailbox import long_poll
from delivery.mailbox.available import END_OR_RETURN, close, is_exhausted
from delivery.mailbox.fetch_messages import LOCK
from delivery.mailbox.receipts import Receipt
from delivery.publish.together import in_slices
from delivery.statuses import DeliveryStatus

MAX_RECEIPTS: Final = 1_000
"""In one call."""


class ReceiptCode(StrEnum):
    """The result of a receipt, or why it is refused."""

    ACKNOWLEDGED = "acknowledged"
    """Its delivery is DELIVERED by it."""

    RETURNED = "returned"
    """Its delivery is available again by it."""

    EXTENDED = "extended"
    """Its delivery is in flight for longer."""

    FAILED = "failed"
    """It was returned, and its redeliveries were used up (contract 9.7)."""

    CANCELLED = "cancelled"
    """It was returned, and cancelling had been requested."""

    STALE = "stale_receipt"
    """Its delivery has been fetched again, or is being pushed."""

    TIMED_OUT = "timed_out"
    """Its delivery has timed out in an ordered mailbox, where a newer one may be in flight."""

    ENDED = "ended"
    """Its delivery has ended otherwise."""

    UNKNOWN = "unknown_receipt"
    """No stored delivery belongs to it."""


class ReceiptResult(NamedTuple):
    """The result of one receipt; the same again if the call is repeated."""

    status: HTTPStatus
    """200, 404 or 409."""
    code: ReceiptCode
    delivery_status: str | None = None
    """None for an unknown receipt."""
    until: datetime | None = None
    """The time-out, if it was extended."""
    seconds: float | None = None
    """From the extension to `until`."""


UNKNOWN: Final = ReceiptResult(HTTPStatus.NOT_FOUND, ReceiptCode.UNKNOWN)
RETURN_CODES: Final[dict[str, ReceiptCode]] = {
    DeliveryStatus.PENDING: ReceiptCode.RETURNED,
    DeliveryStatus.FAILED: ReceiptCode.FAILED,
    DeliveryStatus.CANCELLED: ReceiptCode.CANCELLED,
}
"""Codes of receipts that were returned, by the status of their delivery since."""


class ReceiptState(NamedTuple):
    """A receipt and its delivery, after a call: a row of the statements."""

    delivery_id: int
    fetch_id: int
    newest: int | None
    """The id of the delivery's newest fetch."""
    is_done: bool
    """Whether this call has just had its effect."""
    status: str
    until: datetime | None = None
    """Its time-out, if it was to be extended."""
    seconds: float | None = None
    """From an extension to `until`."""
    woken_line_id: int | None = None
    """The line that may send it now."""
    is_finished: bool = False
    """Whether the delivery had ended before the call."""
    ended_in_mailbox: bool = False
    """Whether it ended while a client had it."""

    @property
    def is_newest(self) -> bool:
        """Whether it is the delivery's newest fetch."""
        return self.newest == self.fetch_id

    @property
    def final_status(self) -> str | None:
        """The status in which this very fetch ended the delivery; None if it did not."""
        return self.status if self.is_finished and self.ended_in_mailbox and self.is_newest else None


FOUND: Final = """
WITH asked AS MATERIALIZED (SELECT * FROM unnest(%(ids)s::bigint[], %(fetch_ids)s::bigint[]) AS a (id, fetch_id)),
own AS MATERIALIZED (
  SELECT s.id, s.delivery_mode, u.mailbox_ordered, u.max_redeliveries
    FROM subscriptions_subscriber u JOIN subscriptions_subscription s ON s.subscriber_id = u.id
   WHERE u.id = %(subscriber)s),
found AS MATERIALIZED (
  SELECT a.id, a.fetch_id, d.fetch_id AS newest, d.fetch_id = a.fetch_id AS counts, d.status, d.fetched_until,
         d.fetches, d.cancel_requested, own.delivery_mode, own.mailbox_ordered, own.max_redeliveries
    FROM (SELECT * FROM asked ORDER BY id, fetch_id) a
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open o
      WHERE o.id = a.id AND o.closed_on = '9999-12-31' AND o.subscription_id = ANY (ARRAY(SELECT id FROM own))
        AND o.fetched_until IS NOT NULL
      LIMIT 1 FOR UPDATE) d
    JOIN own ON own.id = d.subscription_id)"""
"""Locks in order of id, so calls with the same receipts and cancels cannot deadlock. Locks only fetched deliveries: a
settle never waits for a client.
"""

ACKNOWLEDGE: Final = f"""{FOUND},
{close("SELECT id FROM found WHERE counts", status="'DELIVERED'", reason="''")}
SELECT id, fetch_id, newest, counts, CASE WHEN counts THEN 'DELIVERED' ELSE status END FROM found
"""
"""What it waited for is kept: it says that this fetch ended the delivery."""

NACK: Final = f"""{FOUND},
back AS MATERIALIZED (
  SELECT f.id, f.delivery_mode,
         {is_exhausted("f", "CASE WHEN NOT %(not_attempted)s THEN f.max_redeliveries END")} AS ends
    FROM found f WHERE counts),
{END_OR_RETURN}
SELECT f.id, f.fetch_id, f.newest, f.counts, CASE WHEN f.counts THEN COALESCE(g.status, 'PENDING') ELSE f.status END,
       NULL::timestamptz, NULL::float8, CASE WHEN f.counts AND f.delivery_mode = 'PUSH' THEN r.line_id END
  FROM found f LEFT JOIN gone g USING (id) LEFT JOIN returned r USING (id)
"""

EXTEND: Final = f"""{FOUND},
extended AS (
  UPDATE delivery_open d
     SET fetched_until = GREATEST(d.fetched_until, clock_timestamp() + make_interval(secs => %(seconds)s)),
         fetched_seconds = GREATEST(d.fetched_seconds, %(seconds)s)
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(
     SELECT id FROM found WHERE counts AND (fetched_until > clock_timestamp() OR NOT mailbox_ordered)))
  RETURNING d.id, d.fetched_until, extract(epoch FROM d.fetched_until - clock_timestamp())::float8 AS seconds)
SELECT f.id, f.fetch_id, f.newest, e.id IS NOT NULL, f.status,
       COALESCE(e.fetched_until, CASE WHEN f.counts THEN f.fetched_until END), e.seconds
  FROM found f LEFT JOIN extended e ON e.id = f.id AND f.counts
"""
"""A timed-out message is in flight again, except in an ordered mailbox, where a newer one may be by now (9.7)."""

NOT_IN_FLIGHT: Final = """
SELECT a.id, a.fetch_id, d.fetch_id, false, d.status, NULL::timestamptz, NULL::float8, NULL::bigint,
       d.closed_on < '9999-12-31', d.waits_for = 'RETURN'
  FROM unnest(%(ids)s::bigint[], %(fetch_ids)s::bigint[]) AS a (id, fetch_id)
 CROSS JOIN LATERAL (
   SELECT * FROM delivery_delivery o
    WHERE o.id = a.id AND o.subscription_id = ANY (ARRAY(
      SELECT id FROM subscriptions_subscription WHERE subscriber_id = %(subscriber)s))
    LIMIT 1) d
"""
"""Looks up receipts whose deliveries no client has any more.

Runs after the other statements, to see what those waited for have done. A message fetched again has another fetch id,
so none of these receipts counts.
"""


def acknowledge(subscriber_id: int, receipts: Sequence[Receipt]) -> dict[Receipt, ReceiptResult]:
    """End the deliveries of at most `MAX_RECEIPTS` receipts as DELIVERED."""
    return _results(subscriber_id, receipts, _run(ACKNOWLEDGE, subscriber_id, receipts), _acknowledged)


class AcknowledgeCall(NamedTuple):
    """What a client asks for."""

    subscriber_id: int
    receipts: Sequence[Receipt]


def acknowledge_together(calls: Sequence[AcknowledgeCall]) -> list[dict[Receipt, ReceiptResult]]:
    """Acknowledge for several clients at a time, at most `MAX_RECEIPTS` in one statement."""
    results: list[dict[Receipt, ReceiptResult]] = []
    for some in in_slices(calls, lambda call: len(call.receipts), MAX_RECEIPTS):
        receipts: dict[int, set[Receipt]] = {call.subscriber_id: set() for call in some}
        for call in some:
            receipts[call.subscriber_id].update(call.receipts)
        found = {subscriber_id: acknowledge(subscriber_id, [*those]) for subscriber_id, those in receipts.items()}
        results += [found[call.subscriber_id] for call in some]
    return results


def nack(
    subscriber_id: int, receipts: Sequence[Receipt], *, not_attempted: bool = False
) -> dict[Receipt, ReceiptResult]:
    """Return messages to the mailbox; end those that are cancelled or have used up their redeliveries.

    Messages that were `not_attempted` are available again however often they were fetched.
    """
    states = _run(NACK, subscriber_id, receipts, uncertain=False, not_attempted=not_attempted)
    notify.wake(notify.TOPIC, sorted({one.woken_line_id for one in states.values() if one.woken_line_id}))
    long_poll.hint([subscriber_id])
    return _results(subscriber_id, receipts, states, _returned)


def extend(subscriber_id: int, receipts: Sequence[Receipt], *, seconds: int) -> dict[Receipt, ReceiptResult]:
    """Keep messages in flight for at least `seconds` from now."""
    with transaction.atomic():
        rows(LOCK, [subscriber_id])
        states = _run(EXTEND, subscriber_id, receipts, seconds=seconds)
    return _results(subscriber_id, receipts, states, lambda state: ReceiptCode.EXTENDED if state.is_done else None)


def _run(
    statement: LiteralString, subscriber_id: int, receipts: Sequence[Receipt], **more: object
) -> dict[Receipt, ReceiptState]:
    ids, fetch_ids = zip(*sorted({*receipts}), strict=True) if receipts else ((), ())
    found = rows(statement, {"subscriber": subscriber_id, "ids": array(ids), "fetch_ids": array(fetch_ids), **more})
    return {Receipt(*row[:2]): ReceiptState(*row) for row in found}


def _results(
    subscriber_id: int,
    receipts: Sequence[Receipt],
    states: dict[Receipt, ReceiptState],
    success_of: Callable[[ReceiptState], ReceiptCode | None],
) -> dict[Receipt, ReceiptResult]:
    """Return the result of each receipt, also of those that are not in flight; `success_of` returns None if refused."""
    if len(states) < len({*receipts}):
        states = _run(NOT_IN_FLIGHT, subscriber_id, receipts) | states
    return {one: _result(states[one], success_of(states[one])) if one in states else UNKNOWN for one in receipts}


def _acknowledged(state: ReceiptState) -> ReceiptCode | None:
    return ReceiptCode.ACKNOWLEDGED if state.is_done or state.final_status == DeliveryStatus.DELIVERED else None


def _returned(state: ReceiptState) -> ReceiptCode | None:
    if state.is_done or state.final_status in {DeliveryStatus.FAILED, DeliveryStatus.CANCELLED}:
        return RETURN_CODES[state.status]
    is_back = not state.is_finished and state.is_newest and state.status != DeliveryStatus.IN_FLIGHT
    return ReceiptCode.RETURNED if is_back else None


def _result(state: ReceiptState, success: ReceiptCode | None) -> ReceiptResult:
    if success:
        return ReceiptResult(HTTPStatus.OK, success, state.status, state.until, state.seconds)
    if state.is_finished:
        is_acknowledged = state.final_status == DeliveryStatus.DELIVERED
        code = ReceiptCode.ACKNOWLEDGED if is_acknowledged else ReceiptCode.ENDED
    elif not state.is_newest:
        code = ReceiptCode.STALE
    elif state.status != DeliveryStatus.IN_FLIGHT:
        code = ReceiptCode.RETURNED
    elif state.until:
        return ReceiptResult(HTTPStatus.CONFLICT, ReceiptCode.TIMED_OUT, DeliveryStatus.PENDING)
    else:
        code = ReceiptCode.STALE
    return ReceiptResult(HTTPStatus.CONFLICT, code, state.status)
