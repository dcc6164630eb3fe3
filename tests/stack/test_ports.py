"""Ports, addresses and secrets that are chosen once, and when a service counts as ready."""

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from broker_project.environment import MIN_CHARACTERS
from broker_project.stack import folders, ports
from broker_project.stack.application import answers, is_listening
from broker_project.stack.folders import PASSWORD_BYTES, StackSettings
from broker_project.stack.ports import LOOPBACK, any_free, hold, is_free
from broker_project.stack.running_stack import held_port

ANOTHER = 15
"""The database that nobody else uses."""


def test_chosen_values_are_stored_readable_only_by_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    first = StackSettings(path, print)
    chosen = (first.secret("key"), first.secret("admin", PASSWORD_BYTES), first.port("database"))
    assert len(chosen[0]) >= MIN_CHARACTERS
    second = StackSettings(path, print)
    assert (second.secret("key"), second.secret("admin", PASSWORD_BYTES), second.chosen_port("database")) == chosen
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_values_stored_by_another_object_are_kept(tmp_path: Path) -> None:
    earlier, later = StackSettings(tmp_path / "stack.json", print), StackSettings(tmp_path / "stack.json", print)
    password = later.secret("database password")
    earlier.secret("key")
    assert StackSettings(tmp_path / "stack.json", print).secret("database password") == password


@pytest.mark.parametrize("text", ['{"web": "8000",}', "[]", "", '"a"', '{"secret key": null}', '{"web": ["8000"]}'])
def test_damaged_settings_file_is_reported_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stack.json"
    path.write_text(text)
    with pytest.raises(ImproperlyConfigured, match=r"stack\.json has the stack's secrets .* repair it, or restore it"):
        StackSettings(path, print)
    assert path.read_text() == text


def test_port_can_be_a_json_number(tmp_path: Path) -> None:
    port = any_free()
    (tmp_path / "stack.json").write_text(f'{{"web": {port}}}')
    assert StackSettings(tmp_path / "stack.json", print).port("web") == port


@pytest.mark.parametrize("port", ["80 00", "", "-1", "65536"])
def test_stored_port_that_cannot_be_one_is_reported(tmp_path: Path, port: str) -> None:
    (tmp_path / "stack.json").write_text(f'{{"web": "{port}"}}')
    kept = StackSettings(tmp_path / "stack.json", print)
    for ask in (kept.port, kept.chosen_port):
        with pytest.raises(ImproperlyConfigured, match=rf"stack\.json has '{port}' as the port 'web': set it to"):
            ask("web")


def test_preferred_port_is_used_if_free_and_replaced_if_taken(tmp_path: Path) -> None:
    said: list[str] = []
    free = any_free()
    assert StackSettings(tmp_path / "stack.json", said.append).port("web", free) == free
    with socket.create_server((LOOPBACK, free)):
        port = StackSettings(tmp_path / "stack.json", said.append).port("web", free)
    assert port != free
    assert said == [f"port {free} for web is taken by another program: using {port}"]
    assert StackSettings(tmp_path / "stack.json", said.append).port("web", free) == port


def test_held_port_is_free_only_for_a_server_that_shares_it() -> None:
    port = any_free()
    with hold(port):
        assert not is_free(port)
        with pytest.raises(OSError, match="in use"):  # two starts may have found it free at once
            hold(port)
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind((LOOPBACK, port))
            server.listen()
            socket.create_connection((LOOPBACK, port), timeout=1).close()
    assert is_free(port)


def test_port_whose_server_has_just_ended_can_be_held() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOOPBACK, port), timeout=5) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""  # the server has closed first, so its end stays in TIME_WAIT
    assert is_free(port)
    hold(port).close()


def test_another_port_is_held_if_a_program_takes_the_chosen_one_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, was_free = any_free(), iter([True])
    monkeypatch.setattr(folders, "is_free", lambda port: next(was_free, False) or is_free(port))
    kept = StackSettings(tmp_path / "stack.json", print)
    with socket.create_server((LOOPBACK, chosen)), held_port(kept, "Flower", chosen) as held:
        assert held.getsockname()[1] == kept.chosen_port("Flower") != chosen


def test_two_servers_of_a_stack_get_two_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = any_free(), any_free()
    found = iter([one, one, other])
    monkeypatch.setattr(folders, "any_free", lambda: next(found))
    kept = StackSettings(tmp_path / "stack.json", print)
    assert (kept.port("PostgreSQL"), kept.port("Redis")) == (one, other)


def test_port_is_outside_the_ephemeral_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ephemeral = tmp_path / "ip_local_port_range"
    ephemeral.write_text("17000\t60999\n")
    monkeypatch.setattr(ports, "EPHEMERAL_PORTS", ephemeral)
    chosen = [any_free() for _ in range(20)]
    assert [port for port in chosen if not ports.MIN_PORT <= port < 17_000] == []
    assert len(set(chosen)) > 1, "two stacks that start at once hardly choose the same"


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("/", "/admin/"),
        ("/admin", "/admin/"),
        ("/api", "/api/docs/"),
        ("/api/", "/api/docs/"),
        ("/api/docs", "/api/docs/"),
    ],
)
def test_short_address_redirects_to_the_full_one(short: str, full: str) -> None:
    answer = Client().get(short)
    assert (answer.status_code, answer["Location"]) == (302, full)


def test_favicon_is_empty() -> None:
    assert Client().get("/favicon.ico").status_code == 204


def test_service_is_not_ready_without_a_listener() -> None:
    port = any_free()
    assert not is_listening(f"redis://127.0.0.1:{port}/0", "celery@worker")
    assert not answers(f"http://127.0.0.1:{port}/")


@pytest.fixture
def cut_off() -> Iterator[str]:
    """Return the address of a Redis that ends each connection soon after it was made."""
    enough = threading.Event()

    def end() -> None:
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            while not enough.wait(0.02):
                for one in client.client_list():
                    if int(one["db"]) == ANOTHER:
                        client.client_kill_filter(_id=one["id"])

    ending = threading.Thread(target=end)
    ending.start()
    yield f"{settings.REDIS_URL.rpartition('/')[0]}/{ANOTHER}"
    enough.set()
    ending.join()


def test_worker_is_not_ready_if_redis_disconnects(cut_off: str) -> None:
    assert not any(is_listening(cut_off, "celery@worker") for _ in range(3))


def test_what_was_chosen_is_on_disk_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(Path(f"/proc/self/fd/{opened}").readlink()))
    StackSettings(tmp_path / "stack.json", print).secret("secret key")
    assert synced == [tmp_path / "stack.new", tmp_path], "a power cut leaves the old file, or the new one"
