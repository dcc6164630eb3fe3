"""Deliveries in hand, made up: what a line's rules are tested with."""

from delivery.webhook.parts import Content, Destination, Outgoing

CONTENT = Content(1, "Test.Event", b"{}", ())
DESTINATION = Destination(1, 2, "POST", "http://host/", {}, b"")


def in_hand(number: int, *, is_aside: bool = False, size: int = 2) -> Outgoing:
    return Outgoing(
        number, CONTENT, DESTINATION, 0, None, uncertain=False, size=size, is_aside=is_aside, times_set_aside=0
    )


def fresh(*numbers: int) -> list[Outgoing]:
    return [in_hand(number) for number in numbers]


def aside(*numbers: int) -> list[Outgoing]:
    return [in_hand(number, is_aside=True) for number in numbers]
