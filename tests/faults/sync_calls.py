"""One SYNC call, and what it was answered."""

import json
import time
from dataclasses import dataclass, field

DOCUMENTED = frozenset({502, 503, 504})
"""What a call may be answered with where it cannot be passed on or recorded."""


@dataclass(slots=True)
class Call:
    """One call, and what it was answered."""

    number: int
    status: int | None = None
    """None: no answer at all."""
    body: bytes = b""
    begun: float = field(default_factory=time.monotonic)
    ended: float = float("inf")
    message_id: str = ""
    """Under which it was recorded, as the answer says; empty: it was not."""

    @property
    def is_refused_as_documented(self) -> bool:
        """Whether it was answered with a problem document of a status that says to try again."""
        return self.status in DOCUMENTED and bool(json.loads(self.body)["code"])
