"""What the HTTP client connects to: no refused address, by whatever name, redirect or proxy."""

import socket
from collections.abc import Hashable, Iterator
from pathlib import Path

import pycurl
import pytest

from broker_project.core.egress import EgressPolicy, networks_in
from broker_project.stack.load.receiver import Receiver, answer
from delivery.http.client import HttpClient
from delivery.http.transfer import EncodedRequest, Lease
from tests.support.behaviours import close

LONG = 30.0

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
NAME = "endpoint.example"
LOOPBACK = "Address not allowed (loopback)"

Result = tuple[int | str, bool]
"""A status, or why there was no answer; and whether the request was refused."""


class Asking(HttpClient):
    """A client for which a name stands for the addresses that the test says."""

    addresses = HERE

    def start(
        self, token: Hashable, request: EncodedRequest, *, until: float | None = None, lease: Lease | None = None
    ) -> None:
        if not self._idle:
            self._idle.append(self._new_transfer())
        assert request.url
        port = request.url.partition(f"{NAME}:")[2].partition("/")[0] or "80"
        self._idle[-1].handle.setopt(pycurl.RESOLVE, [f"{NAME}:{port}:{self.addresses}"])
        super().start(token, request, until=until, lease=lease)

    def ask(self, url: str) -> Result:
        self.start(url, EncodedRequest("POST", url, [], b"{}"))
        (answered,) = self.wait(LONG)
        if answered.failure:
            assert not answered.failure.was_sent
            return answered.failure.reason, answered.failure.is_refused
        return answered.status, False


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
def egress() -> EgressPolicy:
    return EgressPolicy(networks_in(HERE))


@pytest.fixture
def guarded_client(egress: EgressPolicy) -> Iterator[Asking]:
    client = Asking(egress=egress, deadline_seconds=LONG)
    yield client
    client.close()


@pytest.fixture
def private(receiver: Receiver) -> Iterator[Private]:
    server = Private(ELSEWHERE, int(receiver.url("").rpartition(":")[2]))
    yield server
    server.close()


def named(receiver: Receiver, path: str = "/") -> str:
    return receiver.url(path).replace(HERE, NAME)


def test_denied_address_is_never_connected_to(guarded_client: Asking, receiver: Receiver, private: Private) -> None:
    assert guarded_client.ask(receiver.url().replace(HERE, ELSEWHERE)) == (LOOPBACK, True)
    assert guarded_client.ask(receiver.url()) == (200, False)
    assert not private.was_met()


@pytest.mark.parametrize("host", ["0x7f.2", "2130706434", "017700000002", "127.2", "[::ffff:127.0.0.2]", "127.0.2"])
def test_other_notations_are_refused(guarded_client: Asking, receiver: Receiver, private: Private, host: str) -> None:
    reason, is_refused = guarded_client.ask(receiver.url().replace(HERE, host))
    assert (str(reason).startswith("Address not allowed"), is_refused, private.was_met()) == (True, True, False)


def test_a_name_of_a_denied_address_is_refused(guarded_client: Asking, receiver: Receiver, private: Private) -> None:
    guarded_client.addresses = ELSEWHERE
    assert guarded_client.ask(named(receiver)) == (LOOPBACK, True)
    assert not private.was_met()


@pytest.mark.parametrize("addresses", [f"{ELSEWHERE},{HERE}", f"{HERE},{ELSEWHERE}", f"[::1],{HERE}"])
def test_allowed_address_is_used(guarded_client: Asking, receiver: Receiver, private: Private, addresses: str) -> None:
    guarded_client.addresses = addresses
    assert guarded_client.ask(named(receiver)) == (200, False)
    assert not private.was_met()


@pytest.mark.parametrize("addresses", [f"{ELSEWHERE},{HERE}", f"{HERE},{ELSEWHERE}"])
def test_denied_address_not_tried(guarded_client: Asking, receiver: Receiver, private: Private, addresses: str) -> None:
    receiver.close_port()
    guarded_client.addresses = addresses
    reason, is_refused = guarded_client.ask(named(receiver))
    assert (str(reason).startswith("Failed to connect"), is_refused, private.was_met()) == (True, False, False)


def test_names_are_resolved_for_each_request(guarded_client: Asking, receiver: Receiver, private: Private) -> None:
    receiver.on("/", close, answer())
    assert guarded_client.ask(named(receiver, "/kept")) == (200, False)
    receiver.close_port()
    receiver.open_port()
    guarded_client.addresses = ELSEWHERE
    assert guarded_client.ask(named(receiver, "/kept")) == (LOOPBACK, True)
    guarded_client.addresses = HERE
    assert guarded_client.ask(named(receiver, "/kept")) == (200, False)
    assert not private.was_met()


def test_kept_connection_to_a_denied_address(guarded_client: Asking, egress: EgressPolicy, receiver: Receiver) -> None:
    assert guarded_client.ask(receiver.url("/kept")) == (200, False)
    egress.refusal = EgressPolicy().refusal
    assert guarded_client.ask(receiver.url("/kept")) == (LOOPBACK, True)
    assert len(receiver.of("/kept")) == 1


def test_a_redirect_leads_nowhere(guarded_client: Asking, receiver: Receiver, private: Private) -> None:
    receiver.on("/", answer(302, Location=receiver.url().replace(HERE, ELSEWHERE)))
    assert guarded_client.ask(receiver.url()) == (302, False)
    assert not private.was_met()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_proxy_variables_are_ignored(
    guarded_client: Asking, receiver: Receiver, private: Private, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, f"http://{ELSEWHERE}:{private.port}")
    assert guarded_client.ask(receiver.url()) == (200, False)
    assert not private.was_met()


def test_netrc_is_ignored(
    guarded_client: Asking, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text(f"machine {HERE} login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert guarded_client.ask(receiver.url()) == (200, False)
    assert "authorization" not in receiver.of("/")[0].headers


def test_the_other_kind_of_addresses_is_judged_too(guarded_client: Asking) -> None:
    private = Private("::1", 0)
    assert guarded_client.ask(f"http://[::1]:{private.port}/") == (LOOPBACK, True)
    guarded_client.addresses = "[::1]"
    assert guarded_client.ask(f"http://{NAME}:{private.port}/") == (LOOPBACK, True)
    assert not private.was_met()
    private.close()


def test_an_unknown_name_is_no_refusal(guarded_client: Asking) -> None:
    reason, is_refused = guarded_client.ask("http://nobody.invalid/")
    assert (str(reason).startswith("Could not resolve"), is_refused) == (True, False)


def test_refused_and_closed_requests_leave_no_socket(guarded_client: Asking, receiver: Receiver) -> None:
    def files() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    receiver.on("/closed", close)
    guarded_client.start("/closed", EncodedRequest("POST", receiver.url("/closed"), [], b""))
    guarded_client.wait(LONG)
    before = files()
    for _ in range(20):
        guarded_client.ask(receiver.url().replace(HERE, ELSEWHERE))
        guarded_client.start("/closed", EncodedRequest("POST", receiver.url("/closed"), [], b""))
        guarded_client.wait(LONG)
    assert files() <= before + 1, "one connection of the receiver may be about to close"
