"""A mailbox whose clients acknowledge, return some, or never say anything."""

from dataclasses import dataclass, field
from typing import ClassVar

from tests.faults.everything.works import Work
from tests.faults.figures import Figures
from tests.faults.mailbox_clients import Client
from tests.faults.mailbox_load import Box
from tests.faults.mailbox_manners import acknowledge, give_back_some, never


@dataclass(slots=True)
class Mailboxes(Work):
    """Messages that are fetched; what was not acknowledged in time comes again, however often."""

    kind: ClassVar[str] = "mailbox"
    most_copies: ClassVar[int | None] = None
    box: Box
    sloth: Client = field(init=False)

    def __post_init__(self) -> None:
        self.sloth = self.box.client(never, most=2)

    def start(self) -> None:
        self.sloth.start()
        self.box.read_by(acknowledge, acknowledge, give_back_some)
        for publisher in self.box.publishers:
            publisher.start()

    def done(self) -> int:
        return self.box.answers()

    def stop(self) -> None:
        self.box.stop_publishing(self.sloth)

    def is_through(self) -> bool:
        return not self.box.open()

    def figures(self) -> Figures:
        self.box.read_books()
        return self.box.figures()
