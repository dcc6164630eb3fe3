"""Looking for what polls wait for: one question to the database for all of a process, only while somebody waits.

So publishing neither knows of polls nor pays for them, and whatever makes a message available wakes them: a publish
through another process, a time-out, a delay that ends, a subscription that is resumed.
"""

import os
import threading
import time
from typing import Final

import structlog
from django.db import Error

from broker_project.core.db import forget_connection, rows
from delivery.mailbox.available_ import available, in_flight
from delivery.mailbox.long_poll import Room

EVERY_SECONDS: Final = 0.05
"""How long a message of which there was no hint may lie there."""
BETWEEN_SECONDS: Final = 0.005
"""After a look, before the next one, however many hints there are."""
AFTER_FAILURE_SECONDS: Final = 0.5

LOOK: Final = f"""
SELECT w.subscriber_id, a.number
  FROM unnest(%s::bigint[], %s::int[]) AS w (subscriber_id, waiting)
  JOIN subscriptions_subscriber u ON u.id = w.subscriber_id AND u.status = 'ACTIVE'
 CROSS JOIN LATERAL (
   SELECT count(*) AS number FROM (
     SELECT FROM (SELECT s.id, u.max_redeliveries FROM subscriptions_subscription s
                   WHERE s.subscriber_id = w.subscriber_id AND s.is_fetchable) b
      CROSS JOIN LATERAL ({available("w.waiting")}) d
      LIMIT CASE WHEN u.mailbox_ordered THEN 1 ELSE w.waiting END) d) a
 WHERE a.number > 0 AND NOT (u.mailbox_ordered AND {in_flight("w.subscriber_id")})
"""
"""How many messages there are for each of these mailboxes, as far as there are polls for them.

For an ordered one there is one at a time (behaviour 9.7).
"""

log = structlog.get_logger(__name__)


class LookOut(threading.Thread):
    """Looks for messages as long as polls wait in a room, and wakes those for which there is one."""

    def __init__(self, room: Room) -> None:
        super().__init__(name="mailboxes", daemon=True)
        self._room = room

    def run(self) -> None:
        """Look again and again until the room is closed; it holds a connection only while somebody waits.

        Whatever fails, closing a broken connection too, it goes on: nobody else would wake those who wait.
        """
        is_broken = False
        while self._room.rest(EVERY_SECONDS):
            try:
                if is_broken:
                    forget_connection()
                self.look()
                is_broken = False
            except Error as failure:
                log.warning("mailboxes.database_failed", reason=failure)
                is_broken = True
            except Exception:
                log.exception("mailboxes.failed")
                is_broken = True
            time.sleep(AFTER_FAILURE_SECONDS if is_broken else BETWEEN_SECONDS)
        forget_connection()

    def look(self) -> None:
        """Look once."""
        if waiting := self._room.waiting():
            self._room.wake(dict(rows(LOOK, [[*waiting.keys()], [*waiting.values()]])))
        else:
            forget_connection()


_look_outs: dict[tuple[int, Room], LookOut] = {}
_start_lock: Final = threading.Lock()


def look_out_for(room: Room) -> None:
    """See that there is a thread of this process that looks out for the polls in this room."""
    key = (os.getpid(), room)
    with _start_lock:
        if key not in _look_outs or not _look_outs[key].is_alive():
            _look_outs[key] = LookOut(room)
            _look_outs[key].start()
