"""Search for secrets in logs, Redis, Flower, records and processes, through every encoding."""

import base64
import binascii
import re
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import redis
import requests

from tests.support.real_broker import TIMEOUT_SECONDS, Broker

BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{24,}={0,2}")
MAX_DEPTH = 4
"""A body in JSON in a Celery message in a Redis command."""
STANDARD = bytes.maketrans(b"-_", b"+/")
TASKS = "/api/tasks?limit=100000"


@dataclass(frozen=True, slots=True)
class TextsByPlace:
    """Texts by where they stand."""

    texts: Mapping[str, bytes]

    def with_any_of(self, secrets: Mapping[str, str]) -> list[str]:
        """Return which secret stands where."""
        return sorted(
            f"{name} in {place}"
            for place, text in self.texts.items()
            for layer in {*decoded_layers(text)}
            for name, secret in secrets.items()
            if secret.encode() in layer
        )


def decoded_layers(text: bytes, depth: int = MAX_DEPTH) -> Iterator[bytes]:
    """Yield a text, and what is packed in it: as base64, percent-encoded, compressed."""
    yield text
    if not depth:
        return
    if b"%" in text:
        yield unquote_to_bytes(text)
    for word in {*BASE64.findall(text)}:
        for inner in _unpacked(word):
            yield from decoded_layers(inner, depth - 1)


def _unpacked(word: bytes) -> Iterator[bytes]:
    plain = word.rstrip(b"=").translate(STANDARD)
    try:
        unpacked = base64.b64decode(plain + b"=" * (-len(plain) % 4))
    except binascii.Error:
        return
    yield unpacked
    try:
        yield zlib.decompress(unpacked)
    except zlib.error:
        return


class RedisMonitor:
    """Everything that is said to a Redis from now on."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=None)
        self._monitor = self._client.monitor()  # type: ignore[no-untyped-call]
        self._said: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "RedisMonitor":
        self._monitor.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def said(self) -> bytes:
        return "\n".join(self._said).encode()

    def _listen(self) -> None:
        try:
            for heard in self._monitor.listen():
                self._said.append(str(heard["command"]))
        except (redis.RedisError, OSError, ValueError):
            return  # it is over


def logs_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    yield from ((path.name, path.read_bytes()) for path in broker.stack.logs.iterdir())


def redis_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    """Yield every key of Redis with its value."""
    with broker.redis() as client:
        for key in client.scan_iter():
            yield f"Redis key {key!r}", key + client.dump(key)


def flower_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    """Yield the pages of Flower."""
    name, _, password = broker.stack.flower_login.partition(":")
    for path in (TASKS, "/api/workers?refresh=1", "/broker", "/workers", "/tasks", "/metrics"):
        answer = requests.get(broker.stack.flower + path, auth=(name, password), timeout=TIMEOUT_SECONDS)
        answer.raise_for_status()
        yield f"Flower {path}", answer.content


def records_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    """Yield what Django writes down of people: the history, and sessions with what they are shown next."""
    yield "history", _rows(broker, "SELECT object_repr, change_message FROM django_admin_log")
    yield "sessions", _rows(broker, "SELECT session_data FROM django_session")


def _rows(broker: Broker, query: str) -> bytes:
    rows: list[tuple[Any, ...]] = broker.ask(query)
    assert rows
    return repr(rows).encode()


def processes_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    """Yield the command lines of all processes of the stack, and what those know of the settings that need none."""
    groups = {child.pid: child.service for child in broker.stack.supervisor if child.pid}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        service = groups.get(int(folder.name)) or groups.get(parent)
        if not service:
            continue
        yield f"command line of {service.name}", words
        if service.is_store or b"scripts/child.py" in words:
            yield f"environment of {words!r}", environment
