"""The parts of a round in which something is to be sent of a subscription with a rate limit (behaviour 1.4).

Its pace is one row, whoever sends it: of all processes and lines one at a time takes the next slot. Slots are evenly
spaced, so that what is a little late does not slow down what follows; after a longer rest the next one is at once.
"""

from typing import Final

EARLY: Final = "interval '5 ms'"
"""So much before its slot something may be sent: clocks and commits are no more exact."""
LATE: Final = "GREATEST(LEAST(m.spacing / 2, interval '1 s'), interval '50 ms')"
"""So much after its slot something still is in it."""
AT: Final = f"""CASE WHEN p.last_at + m.spacing > clock_timestamp() - {LATE} THEN p.last_at + m.spacing
              ELSE clock_timestamp() END AS at"""
"""The slot that is taken now of the pace `p`, where slots are `m.spacing` apart."""

SLOTS: Final = f"""
slots AS MATERIALIZED (
  SELECT DISTINCT ON (subscription_id) delivery_id, subscription_id, spacing
    FROM (SELECT m.delivery_id, (m.slot->>'subscription_id')::bigint AS subscription_id,
                 make_interval(secs => (m.slot->>'spacing')::float8) AS spacing
            FROM json_to_recordset(%(marks)s::json) AS m (delivery_id bigint, slot json) WHERE m.slot IS NOT NULL) m
   ORDER BY subscription_id, delivery_id),
free AS MATERIALIZED (
  SELECT m.delivery_id, m.subscription_id, m.spacing,
         {AT}
    FROM slots m JOIN delivery_pace p ON p.subscription_id = m.subscription_id
   WHERE p.last_at IS NULL OR p.last_at + m.spacing <= clock_timestamp() + {EARLY}
   ORDER BY p.subscription_id FOR NO KEY UPDATE OF p SKIP LOCKED),"""
"""One of each subscription a round; whoever has its pace locked is taking the slot."""

IN_ITS_SLOT: Final = """
     AND (d.status = 'IN_FLIGHT' OR d.id = ANY (ARRAY(SELECT delivery_id FROM free))
          OR d.subscription_id <> ALL (ARRAY(SELECT subscription_id FROM slots)))"""
"""What is marked already, by this statement, its commit not heard of, has its slot."""

PACED: Final = """
paced AS (
  UPDATE delivery_pace p SET last_at = f.at
    FROM free f JOIN started d ON d.id = f.delivery_id
   WHERE p.subscription_id = f.subscription_id
  RETURNING p.subscription_id, f.at + f.spacing AS next_at)"""
"""Only what is sent takes its slot."""

RESULT_OF_PACED: Final = """
UNION ALL
SELECT 'waits', subscription_id, (1000000 * extract(epoch FROM next_at - clock_timestamp()))::bigint
  FROM (SELECT subscription_id, next_at FROM paced
         UNION ALL
        SELECT m.subscription_id, p.last_at + m.spacing FROM slots m JOIN delivery_pace p USING (subscription_id)
         WHERE p.last_at + m.spacing > clock_timestamp()
           AND m.subscription_id <> ALL (ARRAY(SELECT subscription_id FROM paced))) w
"""
"""In microseconds, when each may be sent again; nothing of one that could be sent now and was refused otherwise."""
