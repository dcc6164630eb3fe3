"""More web processes on the stores of a running broker."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from broker_project.stack.folders import ROOT
from broker_project.stack.ports import LOOPBACK, any_free
from broker_project.stack.services import Application
from tests.real_broker import TIMEOUT, Broker
from tests.receiver import wait_until


@dataclass(frozen=True, slots=True)
class Web:
    """A web process that serves requests."""

    address: str
    process: "subprocess.Popen[bytes]"


@contextlib.contextmanager
def another_web(broker: Broker, **environment: str) -> Iterator[Web]:
    """Run one more web process on the broker's stores, or on those that `environment` names."""
    port = any_free()
    service = Application({**broker.stack.environment, **environment}, port, 0, "", "").web()
    process = subprocess.Popen(
        service.command, cwd=ROOT, env={**os.environ, **service.environment}, start_new_session=True
    )
    try:
        wait_until(service.is_ready)
        yield Web(f"http://{LOOPBACK}:{port}", process)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
