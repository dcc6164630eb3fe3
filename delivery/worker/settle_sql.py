"""The parts of a round's statement for what has come of deliveries: they leave the open shelf, or stay in it."""

from typing import Final

from delivery.due_times import FILE_GONE, TOLD, TOLD_BY
from delivery.due_times_ import RELEASED

OPEN: Final = "d.closed_on = '9999-12-31'"

ANSWER: Final = """s.started_at, s.duration_ms, s.status_code, s.answer_headers, s.answer_excerpt,
            CASE WHEN s.status_code IS NULL THEN s.reason ELSE '' END AS error"""
ENDED: Final = "id, attempts, started_at, duration_ms, status_code, answer_headers, answer_excerpt, error"
"""What is recorded of an attempt."""

UNRECEIVED: Final = "((d.unreceived OR d.attempts = 0) AND s.status_code IS NULL)"
"""Whether no request has been answered yet, so that nobody is known to have received the delivery."""

FILED: Final = f"""
gone AS (
  DELETE FROM delivery_open d USING settled s, owned o
   WHERE o.id = s.line_id AND {OPEN} AND d.id = s.delivery_id AND d.line_id = s.line_id AND d.status = 'IN_FLIGHT'
     AND d.fetched_until IS NULL AND (s.status <> 'PENDING' OR d.cancel_requested)
  RETURNING d.id, d.message_id, d.line_id, d.subscription_id, d.group_id, d.size, d.attempts + 1 AS attempts,
            d.times_set_aside, d.due_at, CASE WHEN NOT s.unsent THEN d.sequence END AS sequence, d.cancel_requested,
            d.created_at, {TOLD}, {UNRECEIVED} AS unreceived, d.uncertain OR s.uncertain AS uncertain,
            s.reason, s.further,
            CASE s.status WHEN 'PENDING' THEN 'CANCELLED' ELSE s.status END AS status, {ANSWER}),
filed AS ({FILE_GONE})"""
"""What has ended leaves the open shelf; also what would stay, had nobody asked to cancel it.

What has moved to the subscriber's other line since is settled there, by whoever drives that. What has been handed out
by a mailbox since was settled by this very statement, whose commit was not heard of.
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
     AND d.fetched_until IS NULL AND s.status = 'PENDING' AND NOT d.cancel_requested
  RETURNING d.id, d.attempts, CASE WHEN (s.further->>'resumes')::bool THEN s.line_id ELSE d.line_id END AS line_id,
            d.subscription_id, s.reason, s.further, {ANSWER}),
ended AS (SELECT {ENDED} FROM gone UNION ALL SELECT {ENDED} FROM stayed)"""
"""What does not end goes back to its place, is set aside, or moves to the subscriber's other line."""

TOLD_OF_GONE: Final = f"""
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {TOLD_BY}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id,
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
  SELECT {TOLD_BY}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, 'held; it may never have been received'
    FROM kept WHERE status = 'HELD' AND uncertain AND sequence IS NOT NULL)"""
"""What its script brought nothing for is held or set aside, also if the script has changed meanwhile.

Left where it is it would be overtaken: its line goes on with the next.
"""
