"""How a line stands, column by column, in lists of lines and on their pages."""

from typing import Final

from broker_project.core.admin.read_only import ReadOnlyAdmin, instant
from broker_project.core.admin.theme import display
from delivery.admin.line_work import counted, standing_of
from delivery.models import Line
from delivery.status.standing import LineState

STATE_COLOURS: Final = {
    LineState.HELD: "danger",
    LineState.SENDING: "info",
    LineState.WAITING: "info",
    LineState.DEFERRED: "warning",
    LineState.PAUSED: "warning",
    LineState.AWAITING_RELEASE: "danger",
    LineState.DELAYED: "info",
    LineState.INACTIVE: "warning",
    LineState.IDLE: "success",
}


class StandingColumns(ReadOnlyAdmin[Line]):
    """What is told of lines of every kind: their state, what waits in them, and what for."""

    @display(description="state", label=STATE_COLOURS)
    def state(self, line: Line) -> str:
        """Return what it is doing."""
        return str(standing_of(line).state)

    @display(description="waiting")
    def waiting(self, line: Line) -> str:
        """Return how many deliveries are unfinished, or groups of a sender, counted no further than needed."""
        return counted(standing_of(line).waiting)

    @display(description="deferred")
    def set_aside(self, line: Line) -> str:
        """Return how many of them failed before and are tried again later."""
        return counted(standing_of(line).set_aside)

    @display(description="next of those due")
    def set_aside_due(self, line: Line) -> str:
        """Return when the next one that was set aside is due."""
        return instant(standing_of(line).set_aside_due_at)

    @display(description="delayed")
    def delayed(self, line: Line) -> str:
        """Return how many of them are not to be sent before a moment of their own."""
        return counted(standing_of(line).delayed)

    @display(description="to release")
    def awaiting_release(self, line: Line) -> str:
        """Return how many of them are HELD until somebody releases them."""
        return counted(standing_of(line).awaiting_release)

    @display(description="held since")
    def hold_since(self, line: Line) -> str:
        """Return since when it waits for its endpoint."""
        hold = standing_of(line).hold
        return instant(hold.since if hold else None)

    @display(description="held because", empty_value="-")
    def hold_reason(self, line: Line) -> str | None:
        """Return why it waits for its endpoint."""
        hold = standing_of(line).hold
        return hold.reason if hold else None

    @display(description="next try")
    def next_try(self, line: Line) -> str:
        """Return when a held line tries again."""
        hold = standing_of(line).hold
        return instant(hold.next_try_at if hold else None)
