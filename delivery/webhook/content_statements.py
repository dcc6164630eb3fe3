"""The statements that read what is delivered of messages."""

from typing import Final

COLUMNS: Final = """m.id AS stored, COALESCE(e.name, ''), m.body, m.content_type, m.headers::text,
       (extract(epoch FROM m.published_at) * 1000)::bigint"""
"""What `content_in` reads, of a message `m` and its event type `e`."""
MESSAGE: Final = """(SELECT * FROM delivery_message m WHERE m.id = {id} LIMIT 1) m ON true
  LEFT JOIN subscriptions_eventtype e ON e.id = m.event_type_id"""
"""What either of them is joined by, LATERAL: an index for each, however many there are."""
MESSAGES: Final = f"""
SELECT {COLUMNS} FROM unnest(%s::bigint[]) AS i (id) JOIN LATERAL {MESSAGE.format(id="i.id")}
"""
