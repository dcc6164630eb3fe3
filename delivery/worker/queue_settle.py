"""Record outcomes of QUEUE groups: deleting the group's row decides its winner (contract 6.4, 6.5)."""

from typing import Final

from broker_project.core.db import rows
from delivery.filing import CANCELLED_UNKNOWN_OUTCOME, FILE_GONE, FILED_COLUMNS, SHORT_LOCK_WAIT, gone_columns
from delivery.worker.settle_sql import (
    ANSWER,
    ENDED,
    ENDS_ANNOUNCED,
    FINAL_STATUS,
    KEPT,
    OWNED,
    REASON,
    RECORDED,
    RESULT,
    SETTLEMENT,
    STAYS,
    UNCERTAIN,
    WRITTEN,
)

_ANSWERED: Final = gone_columns(status=FINAL_STATUS, attempts="d.attempts + 1", uncertain=UNCERTAIN, reason=REASON)
_REDUNDANT: Final = gone_columns(status="'REDUNDANT'", reason="'delivery ' || w.winner_id || ' was taken'")

_BUT_STATUS: Final = ", ".join(name for name in FILED_COLUMNS if name != "status")

SETTLE_GROUPS: Final = f"""
WITH settled AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(settlements)s::json) AS s ({SETTLEMENT})),
next AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(marks)s::json)
    AS m (line_id bigint, delivery_id bigint, group_id bigint, config_version bigint)),
-- if spares
touched AS (
  SELECT line_id, delivery_id FROM settled UNION ALL SELECT line_id, delivery_id FROM next
   UNION ALL
  SELECT s.line_id, unnest(g.delivery_ids) FROM settled s JOIN delivery_queuegroup g ON g.id = ANY (ARRAY[s.group_id])),
-- end
{OWNED},
-- What has ended is filed, and with a winner all the others of its group. Deleting the group's row decides the winner.
answered AS (
  DELETE FROM delivery_open d USING settled s, owned o
   WHERE o.id = s.line_id AND d.id = ANY (ARRAY[s.delivery_id]) AND d.status = 'IN_FLIGHT'
     AND NOT ({STAYS})
  RETURNING {_ANSWERED}, {ANSWER}),
won AS (
  DELETE FROM delivery_queuegroup g USING answered a WHERE a.status = 'DELIVERED' AND g.id = ANY (ARRAY[a.group_id])
  RETURNING g.id, g.delivery_ids, a.id AS winner_id),
redundant AS (
  DELETE FROM delivery_open d USING (SELECT winner_id, unnest(delivery_ids) AS id FROM won) w
   WHERE d.id = ANY (ARRAY[w.id]) AND d.id <> w.winner_id
  RETURNING {_REDUNDANT}),
gone AS (
  SELECT {_BUT_STATUS},
         -- taken after its group had ended, which should not be: there is one winner at most
         CASE WHEN status = 'DELIVERED' AND group_id NOT IN (SELECT id FROM won) THEN 'REDUNDANT' ELSE status END
           AS status
    FROM answered
  UNION ALL
  SELECT {_BUT_STATUS}, status FROM redundant),
filed AS ({FILE_GONE}),
-- if stays
-- What was not taken: its group ends with its last open delivery, or waits once all its endpoints were asked.
stayed AS (
  UPDATE delivery_open d
     SET {KEPT},
         waits_for = CASE s.status WHEN 'HELD' THEN 'RELEASE' ELSE d.waits_for END,
         times_deferred = d.times_deferred + (s.status = 'PENDING')::int
    FROM settled s, owned o
   WHERE o.id = s.line_id AND d.id = ANY (ARRAY[s.delivery_id]) AND d.status = 'IN_FLIGHT'
     AND {STAYS}
  RETURNING d.id, d.attempts, {ANSWER}),
tried AS MATERIALIZED (
  SELECT g.id, s.again, s.uncertain,
         EXISTS (SELECT FROM delivery_open d
                  WHERE d.id = ANY (g.delivery_ids) AND d.id NOT IN (SELECT id FROM answered)) AS is_open
    FROM settled s JOIN delivery_queuegroup g ON g.id = ANY (ARRAY[s.group_id])
   WHERE s.status <> 'DELIVERED' AND s.delivery_id IN (SELECT id FROM answered UNION ALL SELECT id FROM stayed)),
over AS (
  DELETE FROM delivery_queuegroup g USING tried t WHERE g.id = ANY (ARRAY[t.id]) AND NOT t.is_open),
tried_again AS (
  UPDATE delivery_queuegroup g
     SET attempts = g.attempts + 1, uncertain = g.uncertain OR t.uncertain IS TRUE, first_id = NULL,
         cycles = g.cycles + (t.again IS NOT NULL)::int,
         waits_for = CASE WHEN t.again IS NOT NULL THEN 'RETRY' ELSE g.waits_for END,
         due_at = COALESCE(clock_timestamp() + make_interval(secs => t.again), g.due_at)
    FROM tried t WHERE g.id = ANY (ARRAY[t.id]) AND t.is_open),
-- end
ended AS (
  SELECT {ENDED} FROM answered
-- if stays
   UNION ALL
  SELECT {ENDED} FROM stayed
-- end
  ),
{RECORDED},
sent AS (
  UPDATE delivery_open d SET status = 'IN_FLIGHT'
    FROM next m, owned o, delivery_queuegroup g, subscriptions_subscription s, subscriptions_subscriber u
   WHERE o.id = m.line_id AND d.id = ANY (ARRAY[m.delivery_id]) AND d.line_id = m.line_id
     AND g.id = ANY (ARRAY[m.group_id])
     AND s.id = d.subscription_id AND u.id = s.subscriber_id AND s.is_sending AND u.status = 'ACTIVE'
     AND s.version + u.version = m.config_version AND d.status IN ('PENDING', 'IN_FLIGHT')
     AND (d.expires_at IS NULL OR d.expires_at > clock_timestamp())
  RETURNING d.id, 0::bigint AS sequence)
-- if writes
, {WRITTEN}
-- end
-- if announces
, {ENDS_ANNOUNCED})
-- end
{RESULT}
"""

PUT_BACK: Final = f"""
WITH mine AS MATERIALIZED (
  SELECT l.id FROM delivery_line l WHERE l.id = %(line_id)s AND l.epoch = %(epoch)s AND {SHORT_LOCK_WAIT}
     FOR NO KEY UPDATE OF l),
gone AS (
  DELETE FROM delivery_open d USING mine m
   WHERE d.line_id = m.id AND d.id = %(delivery_id)s AND d.status = 'IN_FLIGHT' AND d.cancel_requested
  RETURNING {CANCELLED_UNKNOWN_OUTCOME}),
filed AS ({FILE_GONE}),
back AS (
  UPDATE delivery_open d SET status = 'PENDING', uncertain = true FROM mine m
   WHERE d.line_id = m.id AND d.id = %(delivery_id)s AND d.status = 'IN_FLIGHT' AND NOT d.cancel_requested
  RETURNING d.id, d.group_id)
UPDATE delivery_queuegroup g
   SET uncertain = true, first_id = b.id,
       waits_for = CASE WHEN %(pause)s::float8 IS NOT NULL THEN 'RETRY' ELSE g.waits_for END,
       due_at = COALESCE(clock_timestamp() + make_interval(secs => %(pause)s::float8), g.due_at)
  FROM (SELECT id, group_id FROM back UNION ALL SELECT NULL, group_id FROM gone) b
 WHERE g.id = ANY (ARRAY[b.group_id])
"""
"""Put back one delivery of a group that is in flight, as recovery does: its group begins with it, as uncertain."""


def put_back(line_id: int, epoch: int, delivery_id: int, *, pause: float | None = None) -> None:
    """Give up a request in flight: its outcome counts as unknown, and its group waits for `pause` seconds if any."""
    rows(PUT_BACK, {"line_id": line_id, "epoch": epoch, "delivery_id": delivery_id, "pause": pause})
