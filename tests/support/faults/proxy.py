"""A proxy before PostgreSQL, which can drop all that processes and server send each other without telling anybody."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from broker_project.stack.ports import LOOPBACK
from broker_project.stack.supervisor import Child
from tests.support.faults.breakage import with_environment
from tests.support.real_broker import TIMEOUT_SECONDS, Broker


class Proxy:
    """Passes on what clients and a server send each other; its coroutines run in the thread of `loop`."""

    def __init__(self, server_port: int, loop: asyncio.AbstractEventLoop) -> None:
        self._server_port = server_port
        self._loop = loop
        self._is_passing = asyncio.Event()
        self._is_passing.set()

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Pass nothing on inside, no end of a connection either; it arrives afterwards, as what TCP sends again."""
        self._loop.call_soon_threadsafe(self._is_passing.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._is_passing.set)

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Pass on what comes over a connection until either side closes it."""
        await self._is_passing.wait()
        server, to_server = await asyncio.open_connection(LOOPBACK, self._server_port)
        await asyncio.gather(self._pass(client, to_server), self._pass(server, to_client))

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(2**16):
                await self._is_passing.wait()
                target.write(data)
                await target.drain()
        await self._is_passing.wait()
        target.close()


@contextmanager
def running_proxy(server_port: int) -> Iterator[tuple[Proxy, int]]:
    """Run a proxy in a thread of its own; give it and its port. Its connections have to be over at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    proxy = Proxy(server_port, loop)
    listening = asyncio.start_server(proxy.serve, LOOPBACK, 0)
    server = asyncio.run_coroutine_threadsafe(listening, loop).result(TIMEOUT_SECONDS)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def proxied(broker: Broker, children: Sequence[Child]) -> Iterator[Proxy]:
    """Let these processes of a broker reach PostgreSQL only through a proxy inside."""
    address = urlsplit(broker.stack.environment["DATABASE_URL"])
    assert address.port
    with running_proxy(address.port) as (proxy, port):
        through = address._replace(netloc=address.netloc.replace(f":{address.port}", f":{port}")).geturl()
        with with_environment(children, DATABASE_URL=through):
            yield proxy
