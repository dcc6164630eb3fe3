"""Asking about locked packages, of a service that answers, one that is away, and one that knows nothing."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from broker_project.stack.folders import ROOT
from broker_project.stack.ports import any_free
from broker_project.stack.test_command import CLEAN, MISUSED, SKIPPED, TOGETHER, VULNERABLE, audit

PINNED = {
    re.match(r"[\w.-]+", line)[0].lower()  # type: ignore[index] # every such line begins with a name
    for lock in (ROOT / "requirements").iterdir()
    for line in lock.read_text().splitlines()
    if "==" in line and not line.startswith((" ", "#"))
}
KNOWN = {
    "id": "GHSA-0000",
    "affected": [
        {
            "package": {"name": "amqp", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}],
        }
    ],
}


@contextmanager
def service(known: dict[str, dict[str, Any]], status: int = 200) -> Iterator[tuple[str, set[str]]]:
    """Play a database of vulnerabilities; give its address, and the packages that were asked about."""
    asked = set()

    class Database(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
            asked.add(name)
            body = json.dumps({"vulns": [known[name]]} if name in known else {}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Database) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query", asked
        server.shutdown()


def ask(address: str) -> int:
    return audit("--vulnerability-service", "osv", "--osv-url", address)


def test_every_locked_package_is_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    with service({}) as (address, asked):
        assert ask(address) == CLEAN
    assert asked == PINNED
    assert capsys.readouterr().out == f"{len(asked)} packages asked about, 0 vulnerabilities known\n"


def test_no_lock_is_left_out() -> None:
    assert {lock for locks in TOGETHER for lock in locks} == {lock.name for lock in (ROOT / "requirements").iterdir()}


def test_a_vulnerable_package_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with service({"amqp": KNOWN}) as (address, _):
        assert ask(address) == VULNERABLE
    assert re.match(r"amqp [\d.]+: GHSA-0000, mended in 99\.0\n", capsys.readouterr().out)


def test_without_data_nothing_is_called_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(f"http://127.0.0.1:{any_free()}/v1/query") == SKIPPED
    assert capsys.readouterr().out.startswith("skipped: no vulnerability data reachable\n")


def test_a_service_that_fails_is_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    with service({}, status=500) as (address, _):
        assert ask(address) == SKIPPED
    assert "known" not in capsys.readouterr().out.partition("\n")[0]


def test_wrong_arguments_are_pip_audits_to_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("--nonsense") == MISUSED
    assert "--nonsense" in capsys.readouterr().err
