"""A subscription that is edited all the time, and what was configured of it when."""

from dataclasses import dataclass, field

from broker_project.stack.demo.receiver import is_signed
from tests.faults.in_force import InForce
from tests.receiver import Received

EDITION = "X-Edition"


@dataclass(slots=True)
class EditedSubscription:
    """One subscription through time."""

    id: int
    address: InForce[str]
    edition: InForce[str]
    """Value of a header."""
    secret: InForce[str]
    is_active: InForce[bool] = field(default_factory=lambda: InForce(first=True))

    @property
    def record(self) -> str:
        """As the admin site names it."""
        return f"subscription/{self.id}"

    def may_have_sent(self, request: Received, address: str, then: tuple[float, float]) -> bool:
        """Say whether address, header and signature were in force at some time then."""
        return (
            address in self.address.between(*then)
            and request.headers.get(EDITION.lower(), "") in self.edition.between(*then)
            and any(is_signed(request.headers, request.body, secret) for secret in self.secret.between(*then))
        )
