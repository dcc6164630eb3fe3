"""A QUEUE job and all that was made of it again: one endpoint takes it, whoever is asked once more (behaviour 6.4)."""

from typing import Final

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
"""Of a delivery `d`: up to the first of what it repeats, to the others of that group, and down to what repeats those.

A group that is made again is one delivery by itself, so this alone knows its mates. `other` is what is asked of each,
`f`, beyond whether it waits or was taken; `asked_group` is the one of which a reply is still expected.
"""

ONE_AT_A_TIME: Final = "hashtext('delivery.replay')"
"""The advisory lock of whoever makes deliveries again: else two would do so at once, and neither see the other's."""
