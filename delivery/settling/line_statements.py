"""The statement that records a round: its parts, and which of them a round needs.

One statement, since two would not be atomic and cost twice. What a round has no use for is left out: the server sets
every part up anew each time it runs, which for a single line costs more than the work itself.
"""

from functools import cache
from typing import Final, LiteralString

from delivery.rules.due_times import RELEASED
from delivery.rules.filing import FILE_GONE, TOLD
from delivery.settling.pause_statements import PAUSED, PAUSED_BY_GONE

OPEN: Final = "d.closed_on = '9999-12-31'"

ANSWER: Final = """s.started_at, s.duration_ms, s.status_code, s.answer_headers, s.answer_excerpt,
            CASE WHEN s.status_code IS NULL THEN s.reason ELSE '' END AS error"""
ENDED: Final = "id, attempts, started_at, duration_ms, status_code, answer_headers, answer_excerpt, error"
"""What is recorded of an attempt."""

UNRECEIVED: Final = "((d.unreceived OR d.attempts = 0) AND s.status_code IS NULL)"
"""Whether no request has been answered yet, so that nobody is known to have received the delivery."""

GIVEN: Final = """
settled AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(settlements)s::json)
    AS s (line_id bigint, delivery_id bigint, status text, pause float8, uncertain bool, unsent bool, reason text,
          started_at timestamptz, duration_ms int, status_code int, answer_headers text, answer_excerpt text,
          further json)),
next AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(marks)s::json)
    AS m (line_id bigint, delivery_id bigint, stamp bigint, sequence bigint)),"""

OWNED: Final = """
owned AS MATERIALIZED (
  SELECT l.id FROM delivery_line l
    JOIN unnest(%(line_id)s::bigint[], %(epoch)s::bigint[]) AS o (line_id, epoch)
      ON l.id = o.line_id AND l.epoch = o.epoch
     FOR NO KEY UPDATE OF l SKIP LOCKED)"""
"""The lines that are still ours, locked: not rewritten, since a row that each settle rewrites degrades first.

In any order: nobody waits here.
"""

FILED: Final = f"""
gone AS (
  DELETE FROM delivery_open d USING settled s, owned o
   WHERE o.id = s.line_id AND {OPEN} AND d.id = s.delivery_id AND d.line_id = s.line_id AND d.status = 'IN_FLIGHT'
     AND (s.status <> 'PENDING' OR d.cancel_requested)
  RETURNING d.id, d.message_id, d.line_id, d.subscription_id, d.group_id, d.size, d.attempts + 1 AS attempts,
            d.times_set_aside, d.due_at, CASE WHEN NOT s.unsent THEN d.sequence END AS sequence, d.cancel_requested,
            d.created_at, {TOLD}, {UNRECEIVED} AS unreceived, d.uncertain OR s.uncertain AS uncertain,
            s.reason, s.further,
            CASE s.status WHEN 'PENDING' THEN 'CANCELLED' ELSE s.status END AS status, {ANSWER}),
filed AS ({FILE_GONE})"""
"""What has ended leaves the open shelf; also what would stay, had nobody asked to cancel it.

What has moved to the subscriber's other line since is settled there, by whoever drives that.
"""

ONLY_GONE: Final = """
ended AS (SELECT * FROM gone)"""

STAYED: Final = f"""
stayed AS (
  UPDATE delivery_open d
     SET status = 'PENDING', attempts = d.attempts + 1, uncertain = d.uncertain OR s.uncertain, reason = s.reason,
         line_id = COALESCE((s.further->>'to_line_id')::bigint, d.line_id),
         sequence = CASE WHEN NOT s.unsent THEN d.sequence END, unreceived = {UNRECEIVED},
         times_set_aside = d.times_set_aside + (s.pause IS NOT NULL)::int,
         due_at = CASE WHEN (s.further->>'suspends')::bool IS NOT TRUE
                       THEN COALESCE(clock_timestamp() + make_interval(secs => s.pause), d.due_at) END
    FROM settled s, owned o
   WHERE o.id = s.line_id AND {OPEN} AND d.id = s.delivery_id AND d.line_id = s.line_id AND d.status = 'IN_FLIGHT'
     AND s.status = 'PENDING' AND NOT d.cancel_requested
  RETURNING d.id, d.attempts, CASE WHEN (s.further->>'resumes')::bool THEN s.line_id ELSE d.line_id END AS line_id,
            d.subscription_id, s.reason, s.further, {ANSWER}),
ended AS (SELECT {ENDED} FROM gone UNION ALL SELECT {ENDED} FROM stayed)"""
"""What does not end goes back to its place, is set aside, or moves to the subscriber's other line."""

TOLD_OF_GONE: Final = """
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT line_id, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id,
         lower(status) || '; it may never have been received'
    FROM gone
   WHERE sequence IS NOT NULL AND (unreceived AND status IN ('FAILED', 'REJECTED')
                                   OR status = 'CANCELLED' AND (uncertain OR unreceived)))"""

RECORDED: Final = """
recorded AS (
  INSERT INTO delivery_attempt (delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                                answer_excerpt)
  SELECT id, attempts, started_at, duration_ms, status_code, error, decode(answer_headers, 'hex'),
         decode(answer_excerpt, 'hex')
    FROM ended)"""
RECORDED_WITH_MEANING: Final = """
recorded AS (
  INSERT INTO delivery_attempt (delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                                answer_excerpt, meaning)
  SELECT e.id, e.attempts, e.started_at, e.duration_ms, e.status_code, e.error, decode(e.answer_headers, 'hex'),
         decode(e.answer_excerpt, 'hex'), s.further->>'meaning'
    FROM ended e JOIN settled s ON s.delivery_id = e.id)"""
"""The attempts."""

STARTED: Final = f"""
started AS (
  UPDATE delivery_open d SET status = 'IN_FLIGHT', sequence = COALESCE(d.sequence, m.sequence)
    FROM next m, owned o, subscriptions_subscription s, subscriptions_subscriber u
   WHERE o.id = m.line_id AND {OPEN} AND d.id = m.delivery_id AND d.line_id = m.line_id
     AND s.id = d.subscription_id AND u.id = s.subscriber_id AND s.is_sending AND u.status = 'ACTIVE'
     AND s.version + u.version = m.stamp AND (d.due_at IS NULL OR d.due_at <= clock_timestamp())
     AND (d.expires_at IS NULL OR d.expires_at > clock_timestamp())
     AND d.status IN ('PENDING', 'IN_FLIGHT')"""
UNLESS_PAUSED: Final = """
     AND s.id <> ALL (ARRAY(SELECT subscription_id FROM told_of WHERE suspends))"""
MARKED: Final = """
  RETURNING d.id, COALESCE(d.sequence, 0) AS sequence)"""
"""What is sent next: as it was read, or marked already by this statement, its commit not heard of."""

REPLIES: Final = f"""
started_replies AS (
  UPDATE delivery_open d SET status = 'IN_FLIGHT'
    FROM next m, owned o
   WHERE o.id = m.line_id AND {OPEN} AND d.id = m.delivery_id AND d.line_id = m.line_id
     AND d.subscription_id IS NULL AND d.status IN ('PENDING', 'IN_FLIGHT')
  RETURNING d.id)"""
"""The same for the replies to callbacks: no subscription may have changed, and they have no number."""

WRITTEN: Final = f"""
missed AS (
  SELECT s.line_id FROM settled s JOIN delivery_open d ON d.id = s.delivery_id AND {OPEN} AND d.line_id = s.line_id
   WHERE d.status = 'IN_FLIGHT' AND s.delivery_id NOT IN (SELECT id FROM ended)),
written AS (
  UPDATE delivery_line l
     SET last_sequence = GREATEST(l.last_sequence, w.last_sequence), head_id = w.head_id, failures = w.failures,
         aside_next = w.aside_next, worker = CASE WHEN w.let_go THEN '' ELSE l.worker END,
         lease_until = CASE WHEN NOT w.let_go THEN clock_timestamp() + make_interval(secs => %(lease)s) END,
         due_at = clock_timestamp() + make_interval(secs => w.pause),
         held_since = CASE WHEN w.pause IS NOT NULL THEN COALESCE(l.held_since, clock_timestamp())
                           WHEN w.head_id IS NOT NULL THEN l.held_since END,
         held_reason = w.reason, held_stamp = w.stamp
    FROM json_to_recordset(%(states)s::json)
           AS w (line_id bigint, let_go bool, last_sequence bigint, head_id bigint, failures int, aside_next bool,
                 pause float8, reason text, stamp bigint)
   -- arrays, looked up by hash: joined, they would be a nested loop of lines and lines
   WHERE l.id = w.line_id AND w.line_id = ANY (ARRAY(SELECT id FROM owned))
     AND NOT (w.let_go AND w.line_id = ANY (ARRAY(SELECT line_id FROM missed))))"""
"""Lines let go or renewed; not let go with a delivery under way that this statement missed: nobody would settle it."""

WITHHELD: Final = f"""
kept AS (
  UPDATE delivery_open d
     SET status = w.status, reason = w.reason, times_set_aside = d.times_set_aside + (w.pause IS NOT NULL)::int,
         due_at = CASE w.status WHEN 'HELD' THEN {RELEASED}
                  ELSE COALESCE(clock_timestamp() + make_interval(secs => w.pause), d.due_at) END
    FROM json_to_recordset(%(withheld)s::json)
           AS w (line_id bigint, delivery_id bigint, status text, pause float8, reason text), owned o
   WHERE o.id = w.line_id AND {OPEN} AND d.id = w.delivery_id AND d.line_id = w.line_id AND d.status = 'PENDING'
     AND (d.due_at IS NULL OR d.due_at <= clock_timestamp())
  RETURNING d.id, d.line_id, d.status, d.sequence, d.uncertain OR d.unreceived AS uncertain),
told_of_kept AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT line_id, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'held; it may never have been received'
    FROM kept WHERE status = 'HELD' AND uncertain AND sequence IS NOT NULL)"""
"""What its script brought nothing for is held or set aside, also if the script has changed meanwhile.

Left where it is it would be overtaken: its line goes on with the next.
"""

RESULT: Final = """
SELECT 'owned', id, NULL::bigint FROM owned
UNION ALL SELECT 'ended', id, NULL::bigint FROM ended
UNION ALL SELECT 'started', id, sequence FROM started
"""
RESULT_OF_REPLIES: Final = """
UNION ALL SELECT 'started', id, 0::bigint FROM started_replies
"""


@cache
def settle_statement(
    *,
    stays: bool,
    writes: bool,
    withholds: bool = False,
    replies: bool = False,
    ends_unanswered: bool = False,
    leads_further: bool = False,
) -> LiteralString:
    """Return the statement for a round.

    In it something stays pending, lines are let go or renewed, scripts have brought nothing to send, replies to
    callbacks are sent next, something ends that has had no answer, or leads to more than a status.
    """
    parts = [GIVEN + OWNED, FILED, STAYED if stays else ONLY_GONE]
    parts += [RECORDED_WITH_MEANING, PAUSED if stays else PAUSED_BY_GONE] if leads_further else [RECORDED]
    parts += [STARTED + (UNLESS_PAUSED if stays and leads_further else "") + MARKED]
    parts += [TOLD_OF_GONE] if stays or ends_unanswered else []
    parts += [WRITTEN] if writes else []
    parts += [WITHHELD] if withholds else []
    parts += [REPLIES] if replies else []
    return "WITH" + ",".join(parts) + RESULT + (RESULT_OF_REPLIES if replies else "")
