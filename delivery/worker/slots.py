"""The slots of all lines of a process: each is in one state, and `MAY_FOLLOW` says which may follow which."""

from enum import IntEnum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from delivery.worker.line import ActiveLine, Slot


class SlotState(IntEnum):
    """What a slot waits for; a number, which a dictionary finds in half the time."""

    SETTLING = auto()
    """The next settle, which records what ended and marks what it sends next."""
    LOCKED = auto()
    """The same, but somebody else has locked its line for a moment."""
    READING = auto()
    """A page of its line."""
    IDLE = auto()
    """New work: there was nothing to send, and it looks again in a moment."""
    PACING = auto()
    """Its subscription's rate limit."""
    TRANSFORMING = auto()
    """The script of its delivery."""
    IN_FLIGHT = auto()
    """The answer to its request."""
    PARKED = auto()
    """The end of its line's other slots, after which the line is released."""


MAY_FOLLOW: Final[dict[SlotState, frozenset[SlotState]]] = {
    **{state: frozenset({SlotState.SETTLING}) for state in SlotState},
    SlotState.SETTLING: frozenset(SlotState) - {SlotState.SETTLING},
    SlotState.IDLE: frozenset({SlotState.SETTLING, SlotState.READING}),
}
"""From each state, which may follow: a settled step says where its slot goes, and elsewhere the next is settled."""


class Slots:
    """The slots of a process by state, in the order in which they came into it; `move` alone changes a state."""

    def __init__(self) -> None:
        self._in: dict[SlotState, dict[Slot, None]] = {state: {} for state in SlotState}

    def __getitem__(self, state: SlotState) -> "list[Slot]":
        """Return the slots in a state; they may be moved meanwhile."""
        return [*self._in[state]]

    def any_in(self, *states: SlotState) -> bool:
        """Tell whether a slot is in one of these states."""
        return any(self._in[state] for state in states)

    def add(self, line: "ActiveLine") -> None:
        """Take in the slots of a line."""
        for slot in line.slots:
            self._in[slot.state][slot] = None

    def move(self, slot: "Slot", state: SlotState) -> None:
        """Put a slot into another state."""
        if state not in MAY_FOLLOW[slot.state]:
            raise ValueError(f"{state} may not follow {slot.state}")
        del self._in[slot.state][slot]
        self._in[state][slot] = None
        slot.state = state

    def drop(self, line: "ActiveLine") -> None:
        """Forget the slots of a line."""
        for slot in line.slots:
            del self._in[slot.state][slot]
