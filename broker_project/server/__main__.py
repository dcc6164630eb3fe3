"""Start the web server: `python -m broker_project.server --host 127.0.0.1 --port 8000`.

This process loads the application and forks `BROKER_WEB_PROCESSES` others, which share its memory. The kernel gives
each new connection on the port to one of them. If one dies, another is forked, which serves at once. If that dies too
within seconds, all end, with status 1 and a line that says so.
"""

import argparse
from typing import Final

from django.conf import settings
from django.urls import resolve
from granian import Granian
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings

from broker_project.core.database_server import check_server_at_start
from broker_project.redis_transport import check_redis_at_start
from broker_project.server import rsgi
from delivery.maintenance.incarnation import guard_connections

CONNECTIONS: Final = 2048
"""Open connections of a process, including idle ones. More wait in the listening socket."""
HEAD_MILLISECONDS: Final = 30_000
"""A connection that has not sent a complete request head for this time is closed."""
HEAD_BUFFER_BYTES: Final = 65_536
"""How much of a head the server reads at a time. If a head is several times as long, it answers 431."""
STOP_SECONDS: Final = 15
"""How long requests in progress may take to end."""


def main() -> None:
    """Serve until a signal, then finish the requests in progress."""
    parser = argparse.ArgumentParser(prog="python -m broker_project.server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    address = parser.parse_args()
    check_server_at_start()
    check_redis_at_start(settings.REDIS_URL)
    guard_connections()
    resolve("/livez")  # loads the views now, not at the first request of each process
    Granian(
        f"{rsgi.__name__}:application",
        address.host,
        address.port,
        interface=Interfaces.RSGI,
        workers=settings.WEB_PROCESSES,
        http=HTTPModes.http1,
        websockets=False,
        backpressure=CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=HEAD_MILLISECONDS, max_buffer_size=HEAD_BUFFER_BYTES),
        respawn_failed_workers=True,
        workers_kill_timeout=STOP_SECONDS,
    ).serve()


if __name__ == "__main__":
    main()
