-- One hour of a history: history.py says what is in it, and runs this with its arguments.

-- What is published.
TRUNCATE life, published;
INSERT INTO published
SELECT k, %(first)s + k, %(hour)s::timestamptz + k * %(step)s
  FROM generate_series(0, %(per_hour)s::bigint - 1) k WHERE %(hour)s::timestamptz + k * %(step)s <= %(until)s;

-- Deliveries of TOPIC messages.
WITH numbers AS (SELECT x.*, n / 10 * 7 + n %% 10 AS m FROM published x WHERE n %% 10 < 7),
sent AS (
  SELECT n.*, r.*, 2 * n + receiver / %(pairs)s AS g,
         %(hour)s::timestamptz + make_interval(mins => 5 + pg_temp.draw(receiver, 1, 40)) AS outage,
         pg_temp.draw(receiver + 1000 * (%(first)s / %(per_hour)s), 2, 4) = 0 AS has_outage
    FROM numbers n
    JOIN unnest(%(receivers)s::int[], %(types)s::bigint[], %(subscriptions)s::bigint[], %(lines)s::bigint[])
         AS r (receiver, type_id, subscription_id, line_id)
      ON receiver %% %(pairs)s = m %% %(pairs)s
     AND type_id = (%(topic_types)s::bigint[])[1 + m / %(pairs)s %% cardinality(%(topic_types)s::bigint[])]),
phased AS (
  SELECT s.*, has_outage AND made >= outage AND made < outage + interval '5 min' AS is_out,
         has_outage AND made >= outage + interval '5 min' AND made < outage + interval '6 min' AS is_after
    FROM sent s),
headed AS (
  SELECT p.*, is_out AND row_number() OVER (PARTITION BY receiver, is_out ORDER BY made) = 1 AS is_head,
         GREATEST(1, ceil(extract(epoch FROM outage + interval '5 min' - made) / 60))::int AS tries
    FROM phased p)
INSERT INTO life
SELECT n, g, 'TOPIC', type_id, line_id, subscription_id, NULL, NULL,
       CASE WHEN is_head THEN 'DELIVERED' ELSE status END, CASE WHEN is_head THEN tries + 1 ELSE planned END,
       CASE WHEN is_head THEN -1 - pg_temp.draw(g, 3, 1000) ELSE failing END, CASE WHEN is_head THEN 200 ELSE last END,
       made,
       -- What waited for the outage's end goes out ten times as fast, what came just then twice as fast: in order.
       CASE WHEN is_out AND NOT is_head THEN outage + interval '5 min' + (made - outage) / 10
            WHEN is_after THEN outage + interval '330 s' + (made - outage - interval '5 min') / 2
            WHEN k = 0 THEN made ELSE made + interval '10 ms' END,
       CASE WHEN is_head THEN (outage + interval '5 min' - made) / tries ELSE interval '1 min' END,
       CASE WHEN k = %(per_hour)s - 4 THEN  -- the last of the hour, which ends with it
                 1000 * extract(epoch FROM %(hour)s::timestamptz + interval '1 hour' - made) - 10
            WHEN pg_temp.draw(g, 4, 100) = 0 THEN 3000 ELSE pg_temp.draw(g, 5, 200) END,
       m / %(pairs)s + 1, NOT is_head AND pg_temp.draw(g, 6, 200) = 0
  FROM headed
  JOIN unnest(%(statuses)s::text[], %(planned)s::int[], %(failing)s::int[], %(lasts)s::int[], %(lows)s::int[],
              %(highs)s::int[]) AS e (status, planned, failing, last, low, high)
    ON pg_temp.draw(g, 7, 1000) >= low AND pg_temp.draw(g, 7, 1000) < high;

-- In a mailbox. Those with a request were sent before their subscription was switched to being fetched.
INSERT INTO life (n, g, kind, type_id, line_id, subscription_id, status, planned, failing, last, made, first, pause,
                  last_ms, uncertain, fetches)
SELECT n, 100000000 + 2 * n, 'MAILBOX', type_id, %(mailbox_line)s, %(mailbox_subscription)s,
       COALESCE(fate, 'DELIVERED'), COALESCE(requests, 0), 500, 500, made,
       made + pg_temp.draw(n, 50, 600) * interval '1 s', interval '0', 30, false, COALESCE(hand_outs, 1)
  FROM life
  LEFT JOIN (VALUES (0, 'EXPIRED', 0, 0), (1, 'CANCELLED', 0, 0), (2, 'FAILED', 0, 3), (3, 'PENDING', 0, 1),
                    (4, 'DELIVERED', 0, 2), (5, 'DELIVERED', 1, 1), (6, 'EXPIRED', 1, 0))
            AS f (lot, fate, requests, hand_outs) ON lot = pg_temp.draw(n, 51, 20)
 WHERE kind = 'TOPIC' AND g = 2 * n AND n %% 10 = 1;

-- Of QUEUE messages.
INSERT INTO life
SELECT n, 2 * n + side, 'QUEUE', %(queue_type)s, (%(senders)s::bigint[])[1 + n %% cardinality(%(senders)s::bigint[])],
       (%(queue_subscriptions)s::bigint[])[1 + n %% %(pairs)s + side * %(pairs)s], pg_temp.id_of(made, 2 * n), NULL,
       CASE WHEN wins THEN 'DELIVERED' ELSE 'REDUNDANT' END,
       CASE WHEN wins OR pg_temp.draw(n, 10, 5) = 0 THEN 1 ELSE 0 END, 500, CASE WHEN wins THEN 200 ELSE 500 END,
       made, made + CASE WHEN wins THEN interval '1 s' ELSE interval '10 ms' END, interval '0',
       pg_temp.draw(n, 11, 150), NULL, false
  FROM (SELECT x.*, side, side = pg_temp.draw(n, 12, 2) AS wins FROM published x, generate_series(0, 1) side
         WHERE n %% 10 IN (7, 8)) x;

-- Of SYNC calls.
INSERT INTO life
SELECT n, 2 * n, 'SYNC', %(sync_type)s, NULL, (%(sync_subscriptions)s::bigint[])[1 + n / 10 %% 2], NULL, NULL,
       CASE fate WHEN 0 THEN 'FAILED' WHEN 1 THEN 'REJECTED' ELSE 'DELIVERED' END, 1, NULL,
       CASE fate WHEN 0 THEN -1 - pg_temp.draw(n, 20, 1000) WHEN 1 THEN 400 ELSE 200 END,
       made, made, interval '0', pg_temp.draw(n, 21, 2000), NULL, fate = 0
  FROM (SELECT x.*, pg_temp.draw(n, 22, 20) AS fate FROM published x WHERE n %% 10 = 9) x;

-- Late, again, or in no order.
-- `message`, `made_at`, `first`: of which of four messages, with which it was made, and from when on it was sent.
-- Ids go by `place` and `half`, and so what is backfilled has an older one than what overtakes it.
INSERT INTO life
SELECT n + 10 * message, 100000000 + 2 * (n + 10 * place) + half, 'TOPIC',
       (%(topic_types)s::bigint[])[1 + (n / 10 + message) * 7 / %(pairs)s %% cardinality(%(topic_types)s::bigint[])],
       (%(later_lines)s::bigint[])[line], (%(later_subscriptions)s::bigint[])[subscription], NULL, NULL,
       'DELIVERED', planned, 404, 200, made + 10 * message * %(step)s,
       made + 10 * first * %(step)s + interval '10 ms', 5 * %(step)s, 20, n / 40 * 5 + number, number IS NULL,
       NULL, NULL, NULL, CASE WHEN made_at > message THEN made + 10 * made_at * %(step)s END,
       CASE WHEN first > made_at THEN made + 10 * first * %(step)s END,
       CASE WHEN what = 'again' THEN pg_temp.id_of(made, 100000000 + 2 * n) END,
       CASE WHEN made_at > message THEN 1 END, CASE WHEN planned > 1 THEN 'retry_lane' END
  FROM published, (VALUES
         ('retried apart', 0, 0, 0, 2, 1, 2, 0, 0.0, 1),
         ('delayed',       1, 1, 0, 1, 1, 1, 1, 2.5, 3),
         ('overtakes',     2, 2, 0, 1, 2, 1, 2, 2.0, 2),
         ('backfilled',    1, 1, 1, 1, 1, 1, 3, 3.0, 4),
         ('again',         0, 3, 0, 1, 1, 1, 3, 3.0, 5),
         ('in no order',   3, 3, 1, 3, 3, 1, 3, 3.0, NULL))
       AS l (what, message, place, half, line, subscription, planned, made_at, first, number)
 WHERE n %% 40 = 0 AND k <= %(per_hour)s - 40 AND made + 40 * %(step)s <= %(until)s;

-- How far each has come by the history's end.
SELECT pg_temp.live(%(until)s, %(final)s);

-- Replies to callbacks: of every fifth group; four in ten have a callback. Their lines are gone.
INSERT INTO life
SELECT -n, -2 * n, 'REPLY', type_id, -n, NULL, NULL, pg_temp.id_of(made, n), 'DELIVERED', 2, 503, 200,
       ended + interval '2 s', ended + interval '2 s', interval '5 s', pg_temp.draw(n, 30, 100), 1, false
  FROM life WHERE kind = 'QUEUE' AND status = 'DELIVERED' AND is_over AND pg_temp.draw(n, 31, 10) < 2
   AND ended + interval '10 s' <= %(until)s;

SELECT pg_temp.live(%(until)s, %(final)s);
ANALYZE life;

-- Now all is stored: messages, deliveries, attempts, callbacks.
INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, answers, outcome,
                              deliveries_count, published_at)
SELECT pg_temp.id_of(made, n), type_id, (%(publishers)s::bigint[])[1 + abs(n) %% cardinality(%(publishers)s::bigint[])],
       '', 100 + pg_temp.draw(n, 40, 5000), 'application/json', '[]', answers, 'ROUTED', count(*), made
  FROM life GROUP BY n, type_id, made, answers;
INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, outcome,
                              deliveries_count, published_at)
SELECT pg_temp.id_of(%(hour)s, 500000000 + %(first)s + number), %(queue_type)s, NULL, '', 7, 'text/plain', '[]',
       outcome, 0, %(hour)s
  FROM unnest(%(astray)s::text[]) WITH ORDINALITY AS o (outcome, number);

INSERT INTO delivery_delivery (id, message_id, line_id, subscription_id, group_id, status, size, attempts,
                               times_deferred, waits_for, due_at, sequence, ordering_key, uncertain, not_before,
                               resubmit_of, replay_id, created_at, finished_at, closed_on, fetches, reason)
SELECT pg_temp.id_of(made, g), pg_temp.id_of(made, n), line_id, subscription_id, group_of, status, 100, planned,
       CASE WHEN is_set_aside THEN planned - 1 ELSE 0 END,
       CASE WHEN is_set_aside THEN 'RETRY' ELSE 'TURN' END,
       CASE WHEN is_set_aside THEN first + (planned - 1) * pause END,
       CASE WHEN planned > 0 THEN sequence END, CASE WHEN kind = 'TOPIC' THEN (sequence %% 3)::text END, uncertain,
       not_before, resubmit_of, replay_id, COALESCE(lined_up, made), ended, (ended AT TIME ZONE 'UTC')::date, fetches,
       CASE WHEN kind = 'MAILBOX' AND status = 'EXPIRED' THEN 'unread for 4 days' ELSE '' END
  FROM (SELECT l.*, kind = 'TOPIC' AND planned > 1 AND failing > 0 AS is_set_aside FROM life l WHERE is_over) l;
INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, attempts,
                           times_deferred, waits_for, due_at, sequence, ordering_key, uncertain, not_before,
                           resubmit_of, replay_id, created_at, fetches)
SELECT pg_temp.id_of(made, g), pg_temp.id_of(made, n), line_id, subscription_id, group_of,
       CASE WHEN status = ANY (%(unfinished)s) THEN status
            WHEN first + made_attempts * pause <= %(until)s AND planned > made_attempts THEN 'IN_FLIGHT'
            ELSE 'PENDING' END, 100, made_attempts, made_attempts,
       CASE WHEN status = 'HELD' THEN 'RELEASE' WHEN made_attempts > 0 THEN 'RETRY' ELSE 'TURN' END,
       CASE WHEN status <> 'HELD' AND made_attempts > 0 THEN first + made_attempts * pause END,
       CASE WHEN planned > 0 AND first <= %(until)s THEN sequence END,
       CASE WHEN kind = 'TOPIC' THEN (sequence %% 3)::text END, uncertain, not_before, resubmit_of, replay_id,
       COALESCE(lined_up, made), fetches
  FROM life WHERE NOT is_over;

INSERT INTO delivery_attempt (id, delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                              answer_excerpt, meaning)
SELECT pg_temp.id_of(started + last_ms * interval '1 ms', 16 * (2 * abs(g) + (g < 0)::int) + number),
       pg_temp.id_of(made, g), number, started, last_ms, CASE WHEN code > 0 THEN code END,
       CASE WHEN code > 0 THEN ''
            ELSE (%(errors)s::text[])[1 + (-1 - code + number) %% cardinality(%(errors)s::text[])] END, '', '',
       CASE WHEN number < planned THEN meaning END
  FROM (SELECT l.*, number, first + (number - 1) * pause AS started,
               CASE WHEN number < planned THEN failing ELSE last END AS code
          FROM life l, generate_series(1, made_attempts) number) l;

INSERT INTO delivery_callback (group_id, message_id, event_type_id, publisher_id, url, token_hash, token_sealed,
                               created_at, expires_at, reply_id, reply_fingerprint, replied_at)
SELECT q.group_of, pg_temp.id_of(q.made, q.n), q.type_id, NULL, 'https://publisher.example/',
       sha256(q.group_of::text::bytea), '', q.made, q.made + interval '30 days',
       pg_temp.id_of(r.made, r.n), CASE WHEN r.n IS NOT NULL THEN ''::bytea END, r.made
  FROM life q LEFT JOIN life r ON r.n = -q.n
 WHERE q.kind = 'QUEUE' AND q.g = 2 * q.n AND pg_temp.draw(q.n, 31, 10) < 4;
