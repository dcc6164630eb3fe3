"""What a run reports, as PostgreSQL can store it."""

from typing import Any


def storable(told: Any) -> Any:
    """Return a value of JSON without what PostgreSQL takes into no text: NUL is left out, half a character is `?`."""
    match told:
        case str():
            return told.replace("\0", "").encode(errors="replace").decode()
        case list():
            return [storable(one) for one in told]
        case dict():
            return {storable(name): storable(one) for name, one in told.items()}
        case _:
            return told
