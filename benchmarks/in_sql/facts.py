"""What a window is made of: `known`, the deliveries that ended in it or had not by its end; `tried`, the attempts."""

from typing import Final

FORGET: Final = "DROP TABLE IF EXISTS pg_temp.known, pg_temp.tried"

KNOWN: Final = r"""
CREATE TEMP TABLE known AS
SELECT d.*, coalesce(e.name, '') AS event_type,
       CASE WHEN d.subscription_id IS NULL THEN %(reply_kind)s
            WHEN d.fetches > 0 OR d.unread OR d.attempts = 0 AND d.delivery_mode = %(pull_mode)s THEN %(pulled_kind)s
            ELSE coalesce(d.own_kind, e.kind, '') END AS kind
  FROM (SELECT d.id, d.group_id, d.subscription_id, d.status, d.attempts, d.fetches, d.sequence, d.uncertain,
               d.status = 'EXPIRED' AND starts_with(d.reason, 'unread for ') AS unread,
               d.created_at, CASE WHEN d.finished_at < %(end)s THEN d.finished_at END AS finished_at,
               trunc(extract(epoch FROM d.finished_at - least(greatest(d.created_at, d.not_before), d.finished_at))
                     * 1000)::bigint AS ms,
               l.sender, b.id AS subscriber_id, coalesce(b.name, '') AS subscriber, s.kind AS own_kind,
               s.delivery_mode,
               coalesce(regexp_replace(substring(s.endpoint, '^[^?#]*'), '//[^/]*@', '//'), '') AS endpoint,
               coalesce(s.event_type_id, (SELECT m.event_type_id FROM delivery_message m WHERE m.id = d.message_id))
               AS event_type_id
          FROM delivery_delivery d
          LEFT JOIN delivery_line l ON l.id = d.line_id
          LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
          LEFT JOIN subscriptions_subscriber b ON b.id = coalesce(s.subscriber_id, l.subscriber_id)
         WHERE d.closed_on >= %(start)s::date - 1
           AND (d.finished_at >= %(start)s AND d.finished_at < %(end)s
                OR d.created_at < %(end)s AND (d.finished_at >= %(end)s OR d.finished_at IS NULL))) d
  LEFT JOIN subscriptions_eventtype e ON e.id = d.event_type_id
"""
"""With those of which nothing has been sent yet: they wait."""

TRIED: Final = """
CREATE TEMP TABLE tried AS
SELECT a.delivery_id, a.number, a.started_at, a.duration_ms,
       k.subscriber_id, coalesce(k.subscriber, '') AS subscriber, k.subscription_id,
       coalesce(k.endpoint, '') AS endpoint, k.event_type_id, coalesce(k.event_type, '') AS event_type,
       coalesce(k.kind, '') AS kind,
       a.status_code IS NULL OR a.status_code NOT BETWEEN 200 AND 299 AS failed,
       coalesce(k.kind <> '' AND a.meaning = %(means_hold)s,
                k.kind || ' ' || coalesce(a.status_code, 0) = ANY (%(holding)s)) AS holds,
       a.status_code BETWEEN 200 AND 299
       OR coalesce(a.meaning = %(means_end)s, k.kind || ' ' || coalesce(a.status_code, 0) = ANY (%(ending)s)) AS ends,
       CASE WHEN a.status_code IS NULL
            THEN coalesce((SELECT class FROM unnest(%(patterns)s::text[], %(classes)s::text[])
                                             WITH ORDINALITY AS f (pattern, class, place)
                            WHERE a.error ~ pattern ORDER BY place LIMIT 1), %(unknown_failure)s)
            WHEN a.status_code = 503 THEN '503'
            WHEN a.status_code BETWEEN 200 AND 599 THEN a.status_code / 100 || 'xx'
            ELSE 'other' END AS error_class,
       coalesce(lead(a.started_at) OVER (PARTITION BY a.delivery_id ORDER BY a.started_at, a.id), k.finished_at)
       AS next_at
  FROM delivery_attempt a LEFT JOIN known k ON k.id = a.delivery_id
 WHERE a.started_at >= %(start)s AND a.started_at < %(end)s
"""

FACTS: Final = (FORGET, KNOWN, "ANALYZE known", TRIED, "ANALYZE tried")
