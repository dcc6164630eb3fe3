"""What a body is to filters: the JSON it holds, or a JSON string (behaviour 3.2)."""

from dataclasses import dataclass

from subscriptions.filters.json_values import Json, parse_json


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of a body that should be JSON and cannot be read as such."""

    reason: str


def parse_body(body: bytes, *, is_json: bool) -> Json | Unreadable:
    """Return the body's value; a body that is not JSON is a string, undecodable bytes are null."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    try:
        return parse_json(text) if is_json else text
    except ValueError as broken:
        return Unreadable(f"the body is not JSON: {broken}")
    except RecursionError:
        return Unreadable("the body is nested too deep")
