"""The statement that records a round of TOPIC lines, retry lines and callback replies; `queue_settle` has the other.

Read it from top to bottom, or let `manage.py statement` print it for `psql`. A block between `-- if name` and
`-- end` is left out in rounds that have no use for it, so most rounds run a short statement; lines that begin with
`--` are not sent.
"""

from typing import Final

from delivery.filing import FILE_GONE, HISTORY_LINE, IS_DUE, SHORT_LOCK_WAIT, gone_columns
from subscriptions.names import OWN_EVENTS, patterns_of

ANSWER: Final = """s.started_at, s.duration_ms, s.status_code, s.answer_headers, s.answer_excerpt,
            CASE WHEN s.status_code IS NULL THEN COALESCE(s.reason, '') ELSE '' END AS error,
            s.side_effects->>'meaning' AS meaning, decode(s.sent, 'hex') AS sent"""
ENDED: Final = (
    "id, attempts, started_at, duration_ms, status_code, answer_headers, answer_excerpt, error, meaning, sent"
)
"""What is recorded of an attempt."""
STAYS: Final = "s.status IN ('PENDING', 'HELD') AND NOT d.cancel_requested"
FINAL_STATUS: Final = "CASE WHEN s.status IN ('PENDING', 'HELD') THEN 'CANCELLED' ELSE s.status END"
"""Of a delivery that ends: also one that would stay, had nobody asked to cancel it."""
UNCERTAIN: Final = "d.uncertain OR s.uncertain IS TRUE"
REASON: Final = "COALESCE(s.reason, '')"
KEPT: Final = f"""status = s.status, attempts = d.attempts + 1, uncertain = {UNCERTAIN}, reason = {REASON},
         crash_count = CASE WHEN s.status = 'PENDING' AND (s.status_code IS NOT NULL OR s.uncertain) THEN 0
                            ELSE d.crash_count END"""
SEQUENCE: Final = "CASE WHEN s.sequence_unused IS NOT TRUE THEN d.sequence END"
UNRECEIVED: Final = "((d.unreceived OR d.attempts = 0) AND s.status_code IS NULL)"
"""Whether no request has been answered yet, so that nobody is known to have received the delivery."""

EARLY: Final = "interval '5 ms'"
"""A delivery may be sent this much before its rate slot: clocks and commits are no more exact."""
LATE: Final = "GREATEST(LEAST(m.spacing / 2, interval '1 s'), interval '50 ms')"
"""A delivery sent this much after its rate slot still takes that slot."""
LAST_AT: Final = f"CASE WHEN p.last_at <= clock_timestamp() + {EARLY} THEN p.last_at END"
"""The rate slot that was taken last of the pace `p`; null if a clock was ahead when that was written (contract 5.9)."""
AT: Final = f"""CASE WHEN {LAST_AT} + m.spacing > clock_timestamp() - {LATE} THEN p.last_at + m.spacing
              ELSE clock_timestamp() END AS at"""
"""The rate slot that is taken now of the pace `p`, where slots are `m.spacing` apart."""

REJECTED: Final = f"{OWN_EVENTS}Delivery.Rejected"
FAILED: Final = f"{OWN_EVENTS}Delivery.Failed"


def _is_wanted(kind: str) -> str:
    """Return the condition that an active subscription is reached by events of this kind."""
    names = ", ".join(f"(0, '{pattern}')" for pattern in patterns_of(kind))
    return f"""EXISTS (
           SELECT FROM (VALUES {names}, ((SELECT id FROM subscriptions_eventtype WHERE name = '{kind}'), ''))
                    AS k (event_type_id, event_pattern)
             JOIN subscriptions_subscription w ON COALESCE(w.event_type_id, 0) = k.event_type_id
                  AND w.event_pattern = k.event_pattern AND w.status = 'ACTIVE'
             JOIN subscriptions_subscriber u ON u.id = w.subscriber_id AND u.status = 'ACTIVE')"""


ENDS_ANNOUNCED: Final = f"""
announced AS (
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, delivery_id, details)
  SELECT CASE status WHEN 'FAILED' THEN '{FAILED}' ELSE '{REJECTED}' END, line_id, subscription_id, id,
         jsonb_build_object('status', status, 'reason', reason, 'attempts', attempts, 'fetches', NULLIF(fetches, 0))
    FROM gone
   WHERE CASE status WHEN 'REJECTED' THEN {_is_wanted(REJECTED)} WHEN 'FAILED' THEN {_is_wanted(FAILED)} END"""
"""Only while somebody subscribes to such events, so that an endpoint that refuses much costs nothing otherwise."""
OF_MAILBOXES: Final = f"""
     AND NOT COALESCE((SELECT starts_with(e.name, '{OWN_EVENTS}')
                         FROM delivery_message m JOIN subscriptions_eventtype e ON e.id = m.event_type_id
                        WHERE m.id = gone.message_id LIMIT 1), false))"""
"""The end of `ENDS_ANNOUNCED` in a mailbox: the broker's own events are not announced."""

SETTLEMENT: Final = """line_id bigint, delivery_id bigint, group_id bigint, status text, pause float8, again float8,
          uncertain bool, sequence_unused bool, reason text, started_at timestamptz, duration_ms int, status_code int,
          answer_headers text, answer_excerpt text, sent text, side_effects json"""
"""What is told of an outcome: null where nothing is to be said."""

OWNED: Final = f"""
-- if spares
-- Lines of which somebody has locked a delivery.
in_the_way AS MATERIALIZED (
  SELECT t.line_id FROM touched t CROSS JOIN LATERAL (
    SELECT * FROM delivery_open o WHERE o.id = t.delivery_id AND o.closed_on = '9999-12-31' LIMIT 1) d
   WHERE d.id <> ALL (ARRAY(
     SELECT f.id FROM (SELECT id FROM delivery_open WHERE id = ANY (ARRAY(SELECT delivery_id FROM touched))
                          FOR UPDATE SKIP LOCKED) f))),
-- end
owned AS MATERIALIZED (
  SELECT l.id FROM delivery_line l
    JOIN unnest(%(line_id)s::bigint[], %(epoch)s::bigint[]) AS o (line_id, epoch)
      ON l.id = o.line_id AND l.epoch = o.epoch
   WHERE {SHORT_LOCK_WAIT}
-- if spares
     AND l.id <> ALL (ARRAY(SELECT line_id FROM in_the_way))
-- end
     FOR NO KEY UPDATE OF l SKIP LOCKED)"""
"""Lock the lines that are still ours, in any order: nobody waits here, and nobody waits long for a delivery.

The lines are not rewritten: a row that each settle rewrites degrades first.
"""

WRITTEN: Final = """
-- A line is not released with a delivery in flight that this statement missed: nobody would settle that. What a client
-- has fetched since keeps no line.
missed AS (
  SELECT s.line_id FROM settled s JOIN delivery_open d ON d.id = ANY (ARRAY[s.delivery_id]) AND d.line_id = s.line_id
   WHERE d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL AND s.delivery_id NOT IN (SELECT id FROM ended)),
written AS (
  UPDATE delivery_line l
     SET last_sequence = GREATEST(l.last_sequence, w.last_sequence), deferred_next = w.deferred_next,
         lease_until = NULL, due_at = clock_timestamp() + make_interval(secs => w.pause)
    FROM json_to_recordset(%(states)s::json)
           AS w (line_id bigint, epoch bigint, last_sequence bigint, deferred_next bool, pause float8)
   -- arrays, looked up by hash: joined, they would be a nested loop of lines and lines
   WHERE l.id = w.line_id AND l.epoch = w.epoch AND w.line_id = ANY (ARRAY(SELECT id FROM owned))
     AND w.line_id <> ALL (ARRAY(SELECT line_id FROM missed)))"""

RESULT: Final = """
SELECT ARRAY(SELECT id FROM owned), ARRAY(SELECT id FROM ended),
       ARRAY(SELECT id FROM sent), ARRAY(SELECT sequence FROM sent)"""

RECORDED: Final = """
recorded AS (
  INSERT INTO delivery_attempt (delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                                answer_excerpt, meaning, sent)
  SELECT id, attempts, started_at, duration_ms, status_code, error, decode(answer_headers, 'hex'),
         decode(answer_excerpt, 'hex'), meaning, sent
    FROM ended)"""

_GONE: Final = gone_columns(
    status=FINAL_STATUS,
    attempts="d.attempts + 1",
    sequence=SEQUENCE,
    uncertain=UNCERTAIN,
    unreceived=UNRECEIVED,
    reason=REASON,
)

SETTLE: Final = f"""
WITH settled AS (
  SELECT * FROM json_to_recordset(%(settlements)s::json) AS s ({SETTLEMENT})),
next AS (
  SELECT * FROM json_to_recordset(%(marks)s::json)
    AS m (line_id bigint, delivery_id bigint, config_version bigint, sequence bigint, is_last_chance bool)),
-- if spares
touched AS (SELECT line_id, delivery_id FROM settled UNION ALL SELECT line_id, delivery_id FROM next),
-- end
{OWNED},
-- A delivery that has moved to the subscriber's other line is settled there. One that was fetched since was settled
-- by this very statement, whose commit was not heard.
gone AS (
  DELETE FROM delivery_open d USING settled s, owned o
   WHERE o.id = s.line_id AND d.id = ANY (ARRAY[s.delivery_id]) AND d.line_id = s.line_id AND d.status = 'IN_FLIGHT'
     AND d.fetched_until IS NULL AND NOT ({STAYS})
  RETURNING {_GONE}, s.side_effects, {ANSWER}),
filed AS ({FILE_GONE}),
-- if stays
-- What does not end goes back to its place, is deferred, or moves to the subscriber's other line.
stayed AS (
  UPDATE delivery_open d
     SET {KEPT}, line_id = COALESCE((s.side_effects->>'to_line_id')::bigint, d.line_id),
         sequence = {SEQUENCE}, unreceived = {UNRECEIVED},
         times_deferred = d.times_deferred + (s.pause IS NOT NULL)::int,
         waits_for = CASE WHEN s.status = 'HELD' THEN 'RELEASE' WHEN (s.side_effects->>'suspends')::bool THEN 'TURN'
                          WHEN s.pause IS NOT NULL THEN 'RETRY' ELSE d.waits_for END,
         due_at = CASE WHEN s.status <> 'HELD' AND (s.side_effects->>'suspends')::bool IS NOT TRUE
                       THEN COALESCE(clock_timestamp() + make_interval(secs => s.pause), d.due_at) END
    FROM settled s, owned o
   WHERE o.id = s.line_id AND d.id = ANY (ARRAY[s.delivery_id]) AND d.line_id = s.line_id AND d.status = 'IN_FLIGHT'
     AND d.fetched_until IS NULL AND {STAYS}
  RETURNING d.id, d.attempts,
            CASE WHEN (s.side_effects->>'resumes')::bool THEN s.line_id ELSE d.line_id END AS line_id,
            d.subscription_id, s.reason, s.side_effects, s.status, d.sequence, {ANSWER}),
-- end
ended AS (
  SELECT {ENDED} FROM gone
-- if stays
   UNION ALL
  SELECT {ENDED} FROM stayed
-- end
  ),
{RECORDED},
-- if turns
-- Subscriptions that are suspended, or that resume after a probe. What was sent under another configuration suspends
-- nothing (4.15), and a policy takes over no other pause. A subscription that somebody has locked, such as an open
-- form, is not waited for: its delivery holds the line for a pause and is tried again, or the next probe has no work.
wishes AS (
  SELECT w.subscription_id, w.id, w.line_id, w.reason, f.*
    FROM (
      SELECT subscription_id, id, line_id, reason, side_effects FROM gone WHERE (side_effects->>'resumes')::bool
-- if stays
       UNION ALL
      SELECT subscription_id, id, line_id, reason, side_effects FROM stayed
       WHERE (side_effects->>'suspends')::bool OR (side_effects->>'resumes')::bool
-- end
         ) w
   CROSS JOIN LATERAL json_to_record(w.side_effects)
           AS f (suspends bool, config_version bigint, probe float8, announces bool)),
turned AS MATERIALIZED (
  SELECT w.*, p.paused_since IS NULL AS is_new
    FROM (SELECT DISTINCT ON (subscription_id) * FROM wishes
           ORDER BY subscription_id, suspends, config_version DESC, id) w
    JOIN subscriptions_subscription p ON p.id = w.subscription_id
    JOIN subscriptions_subscriber u ON u.id = p.subscriber_id
   WHERE CASE WHEN w.suspends THEN p.paused_by = 'POLICY'
                                     OR p.paused_by = '' AND p.version + u.version = w.config_version
              ELSE p.half_open END
   ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED),
changed AS (
  UPDATE subscriptions_subscription p
     SET paused_since = CASE WHEN t.suspends THEN COALESCE(p.paused_since, clock_timestamp()) END,
         paused_by = CASE WHEN t.suspends THEN 'POLICY' ELSE '' END,
         paused_reason = CASE WHEN t.suspends THEN t.reason ELSE '' END, half_open = false,
         probe_due_at = CASE WHEN t.suspends THEN clock_timestamp() + make_interval(secs => t.probe) END
    FROM turned t WHERE p.id = t.subscription_id),
pause_noted AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, delivery_id, reason)
  SELECT {HISTORY_LINE}, clock_timestamp(), CASE WHEN suspends THEN 'PAUSED' ELSE 'RESUMED' END, id,
         concat_ws(': ', 'subscription ' || subscription_id, CASE WHEN suspends THEN reason END)
    FROM turned WHERE is_new OR NOT suspends),
pause_announced AS (
  INSERT INTO delivery_announcement (kind, line_id, subscription_id, delivery_id, details)
  SELECT CASE WHEN suspends THEN 'Broker.Line.Paused' ELSE 'Broker.Line.Resumed' END, line_id, subscription_id, id,
         jsonb_build_object('pause', 'SUSPENDED', 'reason', CASE WHEN suspends THEN reason ELSE '' END)
    FROM turned WHERE announces AND (is_new OR NOT suspends)),
-- end
-- if diverts
-- Subscriptions whose endpoint hangs, or has answered; a locked one is not waited for, and the next answer counts.
diversions AS (
  SELECT DISTINCT ON (w.subscription_id) w.subscription_id, f.*
    FROM (
      SELECT subscription_id, side_effects FROM gone
-- if stays
       UNION ALL
      SELECT subscription_id, side_effects FROM stayed
-- end
         ) w
   CROSS JOIN LATERAL json_to_record(w.side_effects) AS f (diverts bool, config_version bigint)
   WHERE f.diverts IS NOT NULL
   ORDER BY w.subscription_id, f.diverts, f.config_version DESC),
locked_diversions AS MATERIALIZED (
  SELECT v.* FROM diversions v
    JOIN subscriptions_subscription p ON p.id = v.subscription_id
    JOIN subscriptions_subscriber u ON u.id = p.subscriber_id
   WHERE CASE WHEN v.diverts THEN p.diverted_since IS NULL AND p.version + u.version = v.config_version
              ELSE p.diverted_since IS NOT NULL END
-- if turns
     -- a row is changed once: what pauses or resumes comes first
     AND p.id <> ALL (ARRAY(SELECT subscription_id FROM turned))
-- end
   ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED),
diverted AS (
  UPDATE subscriptions_subscription p SET diverted_since = CASE WHEN v.diverts THEN clock_timestamp() END
    FROM locked_diversions v WHERE p.id = v.subscription_id),
-- end
-- if announces
{ENDS_ANNOUNCED}
     AND (side_effects->>'announces')::bool),
-- end
-- if keeps_pace
-- One rate slot of each subscription a round. If its pace is locked, another round is taking the slot.
rate_slots AS MATERIALIZED (
  SELECT DISTINCT ON (subscription_id) delivery_id, subscription_id, spacing
    FROM (SELECT m.delivery_id, (m.rate_slot->>'subscription_id')::bigint AS subscription_id,
                 make_interval(secs => (m.rate_slot->>'spacing')::float8) AS spacing
            FROM json_to_recordset(%(marks)s::json) AS m (delivery_id bigint, rate_slot json)
           WHERE m.rate_slot IS NOT NULL) m
   ORDER BY subscription_id, delivery_id),
free AS MATERIALIZED (
  SELECT m.delivery_id, m.subscription_id, m.spacing,
         {AT}
    FROM rate_slots m JOIN delivery_pace p ON p.subscription_id = m.subscription_id
   WHERE COALESCE({LAST_AT} + m.spacing <= clock_timestamp() + {EARLY}, true)
   ORDER BY p.subscription_id FOR NO KEY UPDATE OF p SKIP LOCKED),
-- end
-- What is sent next: as it was read, or marked already by this statement, whose commit was not heard.
started AS (
  UPDATE delivery_open d SET status = 'IN_FLIGHT', sequence = COALESCE(d.sequence, m.sequence)
    FROM next m, owned o, subscriptions_subscription s, subscriptions_subscriber u
   WHERE o.id = m.line_id AND d.id = ANY (ARRAY[m.delivery_id]) AND d.line_id = m.line_id
     AND s.id = d.subscription_id AND u.id = s.subscriber_id AND s.is_sending AND u.status = 'ACTIVE'
     AND s.version + u.version = m.config_version AND d.status IN ('PENDING', 'IN_FLIGHT') AND {IS_DUE}
     AND (d.expires_at IS NULL OR d.expires_at > clock_timestamp())
-- if turns
     -- other lines may hold deliveries of a subscription that this very statement pauses
     AND s.id <> ALL (ARRAY(SELECT subscription_id FROM wishes WHERE suspends))
-- end
-- if diverts
     AND s.id <> ALL (ARRAY(SELECT subscription_id FROM diversions WHERE diverts))
-- end
-- if keeps_pace
     -- what is marked already has its slot
     AND (d.status = 'IN_FLIGHT' OR d.id = ANY (ARRAY(SELECT delivery_id FROM free))
          OR d.subscription_id <> ALL (ARRAY(SELECT subscription_id FROM rate_slots)))
-- end
  RETURNING d.id, COALESCE(d.sequence, 0) AS sequence)
-- if keyed
-- A number that was meant for what may not be sent is missing, since later ones are marked beside it.
, unused AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT m.line_id, clock_timestamp(), 'NUMBER_UNCERTAIN', m.sequence, m.delivery_id,
         'not used: its delivery could not be sent after all'
    FROM next m JOIN owned o ON o.id = m.line_id
   WHERE m.is_last_chance AND m.delivery_id <> ALL (ARRAY(SELECT id FROM started)))
-- end
-- if doubts
, told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {HISTORY_LINE}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id,
         lower(status) || '; it may never have been received'
    FROM gone
   WHERE sequence IS NOT NULL AND (unreceived AND status IN ('FAILED', 'REJECTED')
                                   OR status = 'CANCELLED' AND (uncertain OR unreceived))
-- if stays
   UNION ALL
  SELECT {HISTORY_LINE}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'held; it may never have been received'
    FROM stayed WHERE status = 'HELD' AND sequence IS NOT NULL
-- end
  )
-- end
-- if writes
, {WRITTEN}
-- end
-- if holds
-- What must not be overtaken, or holds nothing up any more. What waits only for a rate limit has not failed; if it had
-- before, it still has.
, hold AS MATERIALIZED (
  SELECT h.* FROM owned o JOIN json_to_recordset(%(holds)s::json)
           AS h (line_id bigint, delivery_id bigint, pause float8, failures int, reason text, config_version bigint)
      ON h.line_id = o.id),
held AS (
  INSERT INTO delivery_hold AS e (delivery_id, line_id, due_at, failures, reason, config_version)
  SELECT delivery_id, line_id, clock_timestamp() + make_interval(secs => pause), failures, reason, config_version
-- if turns
         -- a probe that worked changes the version, for which nothing that it holds is due
         + (SELECT count(*) FROM turned t WHERE t.id = hold.delivery_id AND NOT t.suspends)
-- end
    FROM hold WHERE pause IS NOT NULL
      ON CONFLICT (delivery_id) DO UPDATE
     SET due_at = EXCLUDED.due_at, failures = EXCLUDED.failures, config_version = EXCLUDED.config_version,
         since = CASE e.reason WHEN '' THEN EXCLUDED.since ELSE e.since END,
         reason = CASE EXCLUDED.reason WHEN '' THEN e.reason ELSE EXCLUDED.reason END),
let_pass AS (
  DELETE FROM delivery_hold e USING hold WHERE e.delivery_id = ANY (ARRAY[hold.delivery_id]) AND hold.pause IS NULL)
-- end
-- if withholds
-- A delivery whose script made nothing is held or deferred, also if the script has changed meanwhile: left where it is,
-- it would be overtaken, for its line goes on with the next.
, kept AS (
  UPDATE delivery_open d
     SET status = w.status, reason = w.reason, times_deferred = d.times_deferred + (w.pause IS NOT NULL)::int,
         waits_for = CASE WHEN w.status = 'HELD' THEN 'RELEASE' WHEN w.pause IS NOT NULL THEN 'RETRY'
                          ELSE d.waits_for END,
         due_at = CASE WHEN w.status <> 'HELD'
                       THEN COALESCE(clock_timestamp() + make_interval(secs => w.pause), d.due_at) END
    FROM json_to_recordset(%(withheld)s::json)
           AS w (line_id bigint, delivery_id bigint, status text, pause float8, reason text), owned o
   WHERE o.id = w.line_id AND d.id = ANY (ARRAY[w.delivery_id]) AND d.line_id = w.line_id AND d.status = 'PENDING'
     AND {IS_DUE}
  RETURNING d.id, d.line_id, d.status, d.sequence, d.uncertain OR d.unreceived AS uncertain),
told_of_kept AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {HISTORY_LINE}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'held; it may never have been received'
    FROM kept WHERE status = 'HELD' AND uncertain AND sequence IS NOT NULL)
-- end
-- if keeps_pace
-- Only what is sent takes its slot.
, paced AS (
  UPDATE delivery_pace p SET last_at = f.at
    FROM free f JOIN started d ON d.id = f.delivery_id
   WHERE p.subscription_id = f.subscription_id
  RETURNING p.subscription_id, f.at + f.spacing AS next_at),
waits AS (
  SELECT subscription_id, extract(epoch FROM next_at - clock_timestamp())::float8 AS seconds
    FROM (SELECT subscription_id, next_at FROM paced
           UNION ALL
          SELECT m.subscription_id, p.last_at + m.spacing FROM rate_slots m JOIN delivery_pace p USING (subscription_id)
           WHERE {LAST_AT} + m.spacing > clock_timestamp()
             AND m.subscription_id <> ALL (ARRAY(SELECT subscription_id FROM paced))) w)
-- end
-- if replies
-- Replies to callbacks: they have no subscription that may have changed, and no number.
, started_replies AS (
  UPDATE delivery_open d SET status = 'IN_FLIGHT'
    FROM next m, owned o
   WHERE o.id = m.line_id AND d.id = ANY (ARRAY[m.delivery_id]) AND d.line_id = m.line_id
     AND d.subscription_id IS NULL AND d.status IN ('PENDING', 'IN_FLIGHT') AND d.expires_at > clock_timestamp()
  RETURNING d.id)
-- end
, sent AS (
  SELECT * FROM started
-- if replies
   UNION ALL
  SELECT id, 0 FROM started_replies
-- end
  )
{RESULT}
-- if keeps_pace
-- When each may be sent to again; nothing of one that could be sent to now and was refused otherwise.
       , ARRAY(SELECT subscription_id FROM waits), ARRAY(SELECT seconds FROM waits)
-- end
"""
