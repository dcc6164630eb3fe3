"""Acknowledge, return and extend messages by receipt (contract 9.2, 9.4)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, LiteralString

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.due_times import RETURNED
from delivery.mailbox import long_poll, results
from delivery.mailbox.available import BACK, ends, gone
from delivery.mailbox.fetch_messages import LOCK
from delivery.mailbox.mailbox import Receipt
from delivery.mailbox.results import Filed, Open, Result
from delivery.statuses import DeliveryStatus

LIMIT: Final = "CASE WHEN NOT %(not_attempted)s THEN f.max_redeliveries END"
"""Of what nobody has begun, none: a hand-out that was no try never ends a message."""

MAX_RECEIPTS: Final = 1_000
"""In one call."""

Found = dict[Receipt, Open | Filed]

FOUND: Final = """
WITH asked AS MATERIALIZED (SELECT * FROM unnest(%(ids)s::bigint[], %(fetches)s::int[]) AS a (id, number)),
own AS MATERIALIZED (
  SELECT s.id, s.delivery_mode, u.mailbox_ordered, u.max_redeliveries
    FROM subscriptions_subscriber u JOIN subscriptions_subscription s ON s.subscriber_id = u.id
   WHERE u.id = %(subscriber)s),
found AS MATERIALIZED (
  SELECT a.id, a.number, d.fetches AS newest, d.fetches = a.number AS counts, d.status, d.fetched_until,
         d.cancel_requested, own.delivery_mode, own.mailbox_ordered, own.max_redeliveries
    FROM (SELECT * FROM asked ORDER BY id, number) a
   CROSS JOIN LATERAL (
     SELECT * FROM delivery_open o
      WHERE o.id = a.id AND o.closed_on = '9999-12-31' AND o.subscription_id = ANY (ARRAY(SELECT id FROM own))
        AND o.fetched_until IS NOT NULL
      LIMIT 1 FOR UPDATE) d
    JOIN own ON own.id = d.subscription_id)"""
"""Locked in order of id, so that calls with the same receipts, and whoever cancels, wait for each other and never in a
ring; and only what is handed out: whoever sends what is sent by now waits for no client.
"""

ACKNOWLEDGE: Final = f"""{FOUND},
{gone("SELECT id FROM found WHERE counts", status="'DELIVERED'", reason="''")}
SELECT id, number, newest, counts, CASE WHEN counts THEN 'DELIVERED' ELSE status END,
       NULL::timestamptz, NULL::float8, NULL::bigint
  FROM found
"""
"""Their due time is carried along: it says that they have ended out of the mailbox, by that hand-out."""


GIVE_BACK: Final = f"""{FOUND},
back AS MATERIALIZED (
  SELECT f.id, f.delivery_mode, {ends("f", LIMIT)} AS ends
    FROM (SELECT *, newest AS fetches FROM found WHERE counts) f),
{BACK}
SELECT f.id, f.number, f.newest, f.counts, CASE WHEN f.counts THEN COALESCE(g.status, 'PENDING') ELSE f.status END,
       NULL::timestamptz, NULL::float8, CASE WHEN f.counts AND f.delivery_mode = 'PUSH' THEN r.line_id END
  FROM found f LEFT JOIN gone g USING (id) LEFT JOIN returned r USING (id)
"""

EXTEND: Final = f"""{FOUND},
extended AS (
  UPDATE delivery_open d
     SET fetched_until = GREATEST(d.fetched_until, clock_timestamp() + make_interval(secs => %(seconds)s))
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(
     SELECT id FROM found WHERE counts AND (fetched_until > clock_timestamp() OR NOT mailbox_ordered)))
  RETURNING d.id, d.fetched_until, extract(epoch FROM d.fetched_until - clock_timestamp())::float8 AS seconds)
SELECT f.id, f.number, f.newest, e.id IS NOT NULL, f.status,
       COALESCE(e.fetched_until, CASE WHEN f.counts THEN f.fetched_until END), e.seconds, NULL::bigint
  FROM found f LEFT JOIN extended e ON e.id = f.id AND f.counts
"""
"""What has timed out is in flight again; but for an ordered mailbox, where something newer may be by now (9.7)."""

ELSEWHERE: Final = f"""
SELECT a.id, a.number, d.fetches, d.status, d.closed_on = '9999-12-31', COALESCE(d.due_at = {RETURNED}, false)
  FROM unnest(%(ids)s::bigint[], %(fetches)s::int[]) AS a (id, number)
 CROSS JOIN LATERAL (
   SELECT * FROM delivery_delivery o
    WHERE o.id = a.id AND o.subscription_id = ANY (ARRAY(
      SELECT id FROM subscriptions_subscription WHERE subscriber_id = %(subscriber)s))
    LIMIT 1) d
"""
"""What has become of those that are handed out no more: where they stand, whether they are unfinished, and by which
hand-out; of what is finished, whether it ended out of the mailbox by that.

Asked after the others, for it must see what whoever they have waited for has done. None of them counts: whatever is
handed out again has another number.
"""


def acknowledge(subscriber_id: int, receipts: Sequence[Receipt]) -> dict[Receipt, Result]:
    """End as DELIVERED what the receipts name, `MAX_RECEIPTS` at most."""
    asked = _arguments(subscriber_id, receipts)
    return _answered(receipts, _found(asked, _open(ACKNOWLEDGE, asked)), results.acknowledged)


def give_back(subscriber_id: int, receipts: Sequence[Receipt], *, not_attempted: bool = False) -> dict[Receipt, Result]:
    """Make available at once what the receipts name; or end it, if its redeliveries are used up or it is cancelled.

    What is `not_attempted`, since its client has not begun it, is available again however often it was handed out.
    """
    asked = _arguments(subscriber_id, receipts)
    open_ones = _open(GIVE_BACK, asked | {"uncertain": False, "not_attempted": not_attempted})
    notify.wake(notify.TOPIC, sorted({one.woken_line for one in open_ones if one.woken_line}))
    long_poll.hint([subscriber_id])
    return _answered(receipts, _found(asked, open_ones), results.given_back)


def extend(subscriber_id: int, receipts: Sequence[Receipt], *, seconds: int) -> dict[Receipt, Result]:
    """Keep in flight what the receipts name for so many seconds from now on, if that is longer."""
    asked = _arguments(subscriber_id, receipts)
    with transaction.atomic():
        rows(LOCK, [subscriber_id])
        open_ones = _open(EXTEND, asked | {"seconds": seconds})
    return _answered(receipts, _found(asked, open_ones), results.extended)


def _arguments(subscriber_id: int, receipts: Sequence[Receipt]) -> dict[str, Any]:
    asked = sorted({*receipts})
    return {
        "subscriber": subscriber_id,
        "ids": [receipt.delivery_id for receipt in asked],
        "fetches": [receipt.fetch for receipt in asked],
    }


def _open(statement: LiteralString, arguments: dict[str, Any]) -> list[Open]:
    return [Open(*row)._replace(status=DeliveryStatus(row[4])) for row in rows(statement, arguments)]


def _found(asked: dict[str, Any], handed_out: Sequence[Open]) -> Found:
    """Look up whatever is handed out no more: it is finished, or waits, or is being sent."""
    found = _by_receipt(handed_out)
    if len(found) < len(asked["ids"]):
        found = _by_receipt(_elsewhere(*row) for row in rows(ELSEWHERE, asked)) | found
    return found


def _by_receipt(known: Iterable[Open | Filed]) -> Found:
    return {Receipt(one.delivery_id, one.fetch): one for one in known}


def _elsewhere(delivery_id: int, fetch: int, newest: int, status: str, is_open: bool, was_out: bool) -> Open | Filed:
    if is_open:
        return Open(delivery_id, fetch, newest, counts=False, status=DeliveryStatus(status))
    return Filed(delivery_id, fetch, newest, DeliveryStatus(status), was_out)


def _answered(
    receipts: Sequence[Receipt], found: Found, answer: Callable[[Open | Filed | None], Result]
) -> dict[Receipt, Result]:
    return {receipt: answer(found.get(receipt)) for receipt in receipts}
