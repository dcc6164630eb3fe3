"""What can be supervised: a command, how to tell that it is ready, and how it likes to be stopped."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


def always() -> bool:
    """Be ready as soon as the process runs, or need nothing before it starts."""
    return True


@dataclass(frozen=True, slots=True)
class Service:
    """One process of the stack, as a description that can be started any number of times."""

    name: str
    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set on top of the environment of the supervisor."""

    prepare: Callable[[], object] = always
    """Called before every start."""

    is_ready: Callable[[], bool] = always
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 20.0
    """How long it may take to finish what is under way; then it is killed."""

    death_signal: signal.Signals = signal.SIGKILL
    """Sent by the kernel and by the guard when the supervisor is gone."""

    is_store: bool = False
    """Stores start before the application and stop after it."""
