"""Create new deliveries of stored messages, for resubmits and replays (contract 5.8)."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.filing import MAIN_LINE
from delivery.publish.routing import SENDER_LINE, sender_lines
from subscriptions.matching import NO_DELETION

ONE_AT_A_TIME: Final = "hashtext('delivery.replay')"
"""Advisory lock: two transactions that create the same deliveries again would not see each other's."""

FAMILY: Final = """
LEFT JOIN LATERAL (
  WITH RECURSIVE above AS (
    SELECT d.id, d.message_id, d.group_id, d.resubmit_of WHERE d.group_id IS NOT NULL
    UNION ALL
    SELECT o.id, o.message_id, o.group_id, o.resubmit_of FROM above a JOIN delivery_delivery o ON o.id = a.resubmit_of),
  family AS (
    SELECT o.* FROM (SELECT * FROM above ORDER BY id LIMIT 1) a
      JOIN delivery_delivery o ON o.message_id = a.message_id AND o.group_id = a.group_id
    UNION ALL
    SELECT o.* FROM family f JOIN delivery_delivery o ON o.resubmit_of = f.id)
  SELECT COALESCE(bool_or(f.closed_on = '9999-12-31'), false) AS is_open,
         COALESCE(bool_or(f.status = 'DELIVERED'), false) AS is_taken,
         COALESCE(bool_or({other}), false) AS is_anothers,
         (SELECT c.group_id FROM delivery_callback c
           WHERE c.group_id = ANY (array_agg(f.group_id)) AND c.reply_id IS NULL LIMIT 1) AS asked_group
    FROM family f) family ON true
"""
"""Joins what is known of a delivery `d` and its QUEUE group: the first delivery that `d` repeats, the others of its
group, and everything that repeats those.

A repeated QUEUE delivery is a group of its own, so only this finds the others. `{other}` is a condition on each of
them, `f`; `asked_group` is the group of which a callback still expects a reply.
"""

LINE_UP: Final = f"""
WITH kept AS MATERIALIZED (
  SELECT id, size FROM delivery_message WHERE id = ANY(%(messages)s::bigint[]) ORDER BY id FOR KEY SHARE),
reached AS MATERIALIZED (
  SELECT s.id, s.subscriber_id, COALESCE(e.kind, 'TOPIC') AS kind, s.delivery_mode = 'PULL' AS is_pulled,
         u.keyless_until IS NOT NULL AS has_keys
    FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
    LEFT JOIN subscriptions_eventtype e ON e.id = s.event_type_id
   WHERE s.id = ANY(%(subscriptions)s::bigint[]) AND s.status = 'ACTIVE' AND u.status = 'ACTIVE'
     AND {NO_DELETION}),
placed AS MATERIALIZED (
  SELECT next_delivery_id() AS id, p.* FROM (
    SELECT m.id AS message_id, m.size, r.id AS subscription_id, r.kind, r.is_pulled, a.delivery_id, a.group_id,
           CASE r.kind
             WHEN 'QUEUE' THEN {SENDER_LINE}
             ELSE (SELECT l.id FROM {MAIN_LINE.format("r.subscriber_id")} l)
           END AS line_id, CASE WHEN r.has_keys THEN COALESCE(a.ordering_key, '') END AS ordering_key
      FROM unnest(%(messages)s::bigint[], %(subscriptions)s::bigint[], %(deliveries)s::bigint[], %(groups)s::bigint[],
                  %(keys)s::text[])
             WITH ORDINALITY AS a (message_id, subscription_id, delivery_id, group_id, ordering_key, place)
      JOIN kept m ON m.id = a.message_id JOIN reached r ON r.id = a.subscription_id AND r.kind <> 'SYNC'
     ORDER BY a.place) p),
grouped AS (
  INSERT INTO delivery_queuegroup (id, message_id, line_id, delivery_ids, size)
  SELECT id, message_id, line_id, ARRAY[id], size FROM placed WHERE kind = 'QUEUE' ORDER BY id),
called_back AS (
  UPDATE delivery_callback c SET group_id = p.id, expires_at = NULL
    FROM (SELECT DISTINCT ON (group_id) group_id, id FROM placed WHERE kind = 'QUEUE' ORDER BY group_id, id) p
   WHERE c.group_id = p.group_id AND c.reply_id IS NULL),
lined_up AS (
  INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, resubmit_of, replay_id,
                             ordering_key)
  SELECT id, message_id, line_id, subscription_id, CASE kind WHEN 'QUEUE' THEN id END, 'PENDING', size, delivery_id,
         %(replay)s::bigint, ordering_key
    FROM placed ORDER BY id)
SELECT p.id, l.queue, p.line_id, p.is_pulled
  FROM placed p JOIN delivery_line l ON l.id = p.line_id ORDER BY p.id
"""
"""Messages are locked first: their day is not dropped before the new deliveries need it.

Left out are deliveries whose message is gone or whose subscription is not ACTIVE. A QUEUE delivery is a group of its
own, at the sender of its message; a reply expected of its old group is expected of it, and has its days once it ends.
"""


class SentDelivery(NamedTuple):
    """A delivery to send again."""

    id: int
    message_id: int
    subscription_id: int | None
    """None: it is the reply to a callback, which only `resubmit` sends again."""
    group_id: int | None
    """Its QUEUE group, or the group of which a reply is still expected."""
    ordering_key: str | None = None
    """As it was when its message was published."""


def create_deliveries(old: Sequence[SentDelivery], *, senders: int, replay_id: int | None = None) -> list[int]:
    """Store a new delivery of each, in this order, in the open transaction, and return their ids.

    Those that cannot be sent are left out. The lines are woken after the commit, except for mailboxes. `senders` is the
    number of QUEUE senders.
    """
    columns = [*zip(*old, strict=True)] or [()] * len(SentDelivery._fields)
    names = ("deliveries", "messages", "subscriptions", "groups", "keys")
    arguments = {name: [*column] for name, column in zip(names, columns, strict=True)}
    queues = sender_lines(senders) if any(arguments["groups"]) else {}
    found = rows(LINE_UP, {**arguments, "senders": [*queues], "replay": replay_id})
    notify.wake_after_commit((queue, line_id) for _, queue, line_id, is_pulled in found if not is_pulled)
    return [delivery_id for delivery_id, *_ in found]
