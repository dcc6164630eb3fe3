"""Requests go to no address that is out of reach, whatever stands for it, and nothing that looks like a dead endpoint.

The address in reach is 127.0.0.1, where the receiver is; 127.0.0.2 and ::1 stand for somebody's private network.
"""

import socket
from collections.abc import Hashable, Iterator
from pathlib import Path

import pycurl
import pytest
import requests

from broker_project.core.egress import EgressPolicy, networks_in
from delivery.http.client import HttpClient
from delivery.http.headers import EncodedRequest
from delivery.http.transfer import RequestNotCompleted
from tests.receiver import Receiver, answer, close

LONG = 30.0
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
NAME = "endpoint.example"
LOOPBACK = "Address not allowed (loopback)"

Result = tuple[int | str, bool]
"""A status, or why there is none; and whether the request was refused."""


class Asking(HttpClient):
    """A client for which a name stands for the addresses that the test says."""

    addresses = HERE

    def start(self, token: Hashable, request: requests.PreparedRequest, *, since: float | None = None) -> None:
        if not self._idle:
            self._idle.append(self._new_transfer())
        assert request.url
        port = request.url.partition(f"{NAME}:")[2].partition("/")[0] or "80"
        self._idle[-1].handle.setopt(pycurl.RESOLVE, [f"{NAME}:{port}:{self.addresses}"])
        super().start(token, request, since=since)

    def ask(self, url: str) -> Result:
        self.start(url, EncodedRequest("POST", url, [], b"{}"))
        (answered,) = self.wait(LONG)
        result = answered.result
        if isinstance(result, RequestNotCompleted):
            assert not result.was_sent
            return result.reason, result.is_refused
        return result.status_code, False


class Private:
    """Somebody's own server, next to the receiver: who connects to it is remembered by the system."""

    def __init__(self, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def was_met(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def reach() -> EgressPolicy:
    return EgressPolicy(networks_in(HERE))


@pytest.fixture
def client(reach: EgressPolicy) -> Iterator[Asking]:
    client = Asking(reach=reach, deadline_seconds=LONG)
    yield client
    client.close()


@pytest.fixture
def private(receiver: Receiver) -> Iterator[Private]:
    server = Private(ELSEWHERE, int(receiver.url("").rpartition(":")[2]))
    yield server
    server.close()


def named(receiver: Receiver, path: str = "/") -> str:
    return receiver.url(path).replace(HERE, NAME)


def test_an_address_out_of_reach_is_never_connected_to(client: Asking, receiver: Receiver, private: Private) -> None:
    assert client.ask(receiver.url().replace(HERE, ELSEWHERE)) == (LOOPBACK, True)
    assert client.ask(receiver.url()) == (200, False)
    assert not private.was_met()


@pytest.mark.parametrize("host", ["0x7f.2", "2130706434", "017700000002", "127.2", "[::ffff:127.0.0.2]", "127.0.2"])
def test_no_disguise_helps(client: Asking, receiver: Receiver, private: Private, host: str) -> None:
    reason, is_refused = client.ask(receiver.url().replace(HERE, host))
    assert (str(reason).startswith("Address not allowed"), is_refused, private.was_met()) == (True, True, False)


def test_a_name_is_no_disguise_either(client: Asking, receiver: Receiver, private: Private) -> None:
    client.addresses = ELSEWHERE
    assert client.ask(named(receiver)) == (LOOPBACK, True)
    assert not private.was_met()


@pytest.mark.parametrize("addresses", [f"{ELSEWHERE},{HERE}", f"{HERE},{ELSEWHERE}", f"[::1],{HERE}"])
def test_of_several_addresses_those_in_reach_are_connected_to(
    client: Asking, receiver: Receiver, private: Private, addresses: str
) -> None:
    client.addresses = addresses
    assert client.ask(named(receiver)) == (200, False)
    assert not private.was_met()


@pytest.mark.parametrize("addresses", [f"{ELSEWHERE},{HERE}", f"{HERE},{ELSEWHERE}"])
def test_where_the_one_in_reach_is_down_the_endpoint_is_and_no_other_address_stands_in(
    client: Asking, receiver: Receiver, private: Private, addresses: str
) -> None:
    receiver.close_port()
    client.addresses = addresses
    reason, is_refused = client.ask(named(receiver))
    assert (str(reason).startswith("Failed to connect"), is_refused, private.was_met()) == (True, False, False)


def test_what_a_name_stands_for_is_looked_at_each_time(client: Asking, receiver: Receiver, private: Private) -> None:
    receiver.on("/", close, answer())
    assert client.ask(named(receiver, "/kept")) == (200, False)
    receiver.close_port()
    receiver.open_port()
    client.addresses = ELSEWHERE
    assert client.ask(named(receiver, "/kept")) == (LOOPBACK, True)
    client.addresses = HERE
    assert client.ask(named(receiver, "/kept")) == (200, False)
    assert not private.was_met()


def test_a_kept_connection_to_what_is_out_of_reach_by_now_is_not_used(
    client: Asking, reach: EgressPolicy, receiver: Receiver
) -> None:
    assert client.ask(receiver.url("/kept")) == (200, False)
    reach.refusal = EgressPolicy().refusal
    assert client.ask(receiver.url("/kept")) == (LOOPBACK, True)
    assert len(receiver.of("/kept")) == 1


def test_a_redirect_leads_nowhere(client: Asking, receiver: Receiver, private: Private) -> None:
    receiver.on("/", answer(302, Location=receiver.url().replace(HERE, ELSEWHERE)))
    assert client.ask(receiver.url()) == (302, False)
    assert not private.was_met()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_no_proxy_of_the_environment_is_asked(
    client: Asking, receiver: Receiver, private: Private, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, f"http://{ELSEWHERE}:{private.port}")
    assert client.ask(receiver.url()) == (200, False)
    assert not private.was_met()


def test_no_login_is_taken_from_netrc(
    client: Asking, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text(f"machine {HERE} login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert client.ask(receiver.url()) == (200, False)
    assert "authorization" not in receiver.of("/")[0].headers


def test_the_other_kind_of_addresses_is_judged_too(client: Asking) -> None:
    private = Private("::1", 0)
    assert client.ask(f"http://[::1]:{private.port}/") == (LOOPBACK, True)
    client.addresses = "[::1]"
    assert client.ask(f"http://{NAME}:{private.port}/") == (LOOPBACK, True)
    assert not private.was_met()
    private.close()


def test_what_names_nobody_is_no_refusal(client: Asking) -> None:
    reason, is_refused = client.ask("http://nobody.invalid/")
    assert (str(reason).startswith("Could not resolve"), is_refused) == (True, False)


def test_neither_leaves_a_socket_behind(client: Asking, receiver: Receiver) -> None:
    def files() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    receiver.on("/closed", close)
    client.start("/closed", EncodedRequest("POST", receiver.url("/closed"), [], b""))
    client.wait(LONG)
    before = files()
    for _ in range(20):
        client.ask(receiver.url().replace(HERE, ELSEWHERE))
        client.start("/closed", EncodedRequest("POST", receiver.url("/closed"), [], b""))
        client.wait(LONG)
    assert files() <= before + 1, "one connection of the receiver may be about to close"
