"""What the processes of a broker have in memory."""

from collections.abc import Mapping
from pathlib import Path

from tests.real_broker import Broker

IN_USE = "VmRSS"


def memory_of(broker: Broker) -> Mapping[str, int]:
    """Return the MiB of each process that runs, by name."""
    pids = {child.service.name: child.pid for child in broker.stack.supervisor}
    return {name: _mib(pid) for name, pid in pids.items() if pid}


def _mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = [int(line.split()[1]) for line in status if line.startswith(IN_USE)]
    return sum(found) // 1024
