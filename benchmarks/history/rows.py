"""The statements that store what the lives of deliveries have left: messages, deliveries, attempts, callbacks."""

from typing import Final

MESSAGES: Final = """
INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, answers, outcome,
                              deliveries_count, published_at)
SELECT pg_temp.id_of(made, n), type_id, (%(publishers)s::bigint[])[1 + abs(n) %% cardinality(%(publishers)s::bigint[])],
       '', 100 + pg_temp.draw(n, 40, 5000), 'application/json', '[]', answers, 'ROUTED', count(*), made
  FROM life GROUP BY n, type_id, made, answers;
INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, outcome,
                              deliveries_count, published_at)
SELECT pg_temp.id_of(%(hour)s, 500000000 + %(first)s + number), %(queue_type)s, NULL, '', 7, 'text/plain', '[]',
       outcome, 0, %(hour)s
  FROM unnest(%(astray)s::text[]) WITH ORDINALITY AS o (outcome, number)
"""
DELIVERIES: Final = """
INSERT INTO delivery_delivery (id, message_id, line_id, subscription_id, group_id, status, size, attempts,
                               times_set_aside, due_at, sequence, uncertain, not_before, resubmit_of, replay_id,
                               created_at, finished_at, closed_on, fetches, reason)
SELECT pg_temp.id_of(made, g), pg_temp.id_of(made, n), line_id, subscription_id, group_of, status, 100, planned,
       CASE WHEN is_set_aside THEN planned - 1 ELSE 0 END,
       CASE WHEN is_set_aside THEN first + (planned - 1) * pause END,
       CASE WHEN planned > 0 THEN sequence END, uncertain, not_before, resubmit_of, replay_id,
       COALESCE(lined_up, made), ended, (ended AT TIME ZONE 'UTC')::date, fetches,
       CASE WHEN kind = 'MAILBOX' AND status = 'EXPIRED' THEN 'unread for 4 days' ELSE '' END
  FROM (SELECT l.*, kind = 'TOPIC' AND planned > 1 AND failing > 0 AS is_set_aside FROM life l WHERE is_over) l;
INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, attempts,
                           times_set_aside, due_at, sequence, uncertain, not_before, resubmit_of, replay_id, created_at,
                           fetches)
SELECT pg_temp.id_of(made, g), pg_temp.id_of(made, n), line_id, subscription_id, group_of,
       CASE WHEN status = ANY (%(unfinished)s) THEN status
            WHEN first + made_attempts * pause <= %(until)s AND planned > made_attempts THEN 'IN_FLIGHT'
            ELSE 'PENDING' END, 100, made_attempts, made_attempts,
       CASE WHEN status = 'HELD' THEN '9999-12-31 00:00+00'
            WHEN made_attempts > 0 THEN first + made_attempts * pause END,
       CASE WHEN planned > 0 AND first <= %(until)s THEN sequence END, uncertain, not_before, resubmit_of, replay_id,
       COALESCE(lined_up, made), fetches
  FROM life WHERE NOT is_over
"""
ATTEMPTS: Final = """
INSERT INTO delivery_attempt (id, delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                              answer_excerpt, meaning)
SELECT pg_temp.id_of(started + last_ms * interval '1 ms', 16 * (2 * abs(g) + (g < 0)::int) + number),
       pg_temp.id_of(made, g), number, started, last_ms, CASE WHEN code > 0 THEN code END,
       CASE WHEN code > 0 THEN ''
            ELSE (%(errors)s::text[])[1 + (-1 - code + number) %% cardinality(%(errors)s::text[])] END, '', '',
       CASE WHEN number < planned THEN meaning END
  FROM (SELECT l.*, number, first + (number - 1) * pause AS started,
               CASE WHEN number < planned THEN failing ELSE last END AS code
          FROM life l, generate_series(1, made_attempts) number) l
"""
CALLBACKS: Final = """
INSERT INTO delivery_callback (group_id, message_id, event_type_id, publisher_id, url, token_hash, token_sealed,
                               created_at, expires_at, reply_id, reply_fingerprint, replied_at)
SELECT q.group_of, pg_temp.id_of(q.made, q.n), q.type_id, NULL, 'https://publisher.example/',
       sha256(q.group_of::text::bytea), '', q.made, q.made + interval '30 days',
       pg_temp.id_of(r.made, r.n), CASE WHEN r.n IS NOT NULL THEN ''::bytea END, r.made
  FROM life q LEFT JOIN life r ON r.n = -q.n
 WHERE q.kind = 'QUEUE' AND q.g = 2 * q.n AND pg_temp.draw(q.n, 31, 10) < 4
"""

AN_HOUR: Final = (MESSAGES, DELIVERIES, ATTEMPTS, CALLBACKS)
