"""JSON pointers (RFC 6901): where in a document something stands."""

from typing import Any

Path = tuple[str | int, ...]
"""The steps from the root of a document: members' names and elements' positions."""


def pointer_of(path: Path) -> str:
    """Return the pointer of `path`; "" is the whole document."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def path_of(pointer: str) -> Path:
    """Return the steps of `pointer`, each as a text."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def found_at(document: Any, path: Path) -> Any:
    """Return what stands at `path`.

    Raises:
        LookupError: nothing does.

    """
    for step in path:
        document = _member(document, step)
    return document


def _member(document: Any, step: str | int) -> Any:
    match document:
        case dict():
            return document[step]
        case list():
            return document[_position(step)]
    raise LookupError(step)


def _position(step: str | int) -> int:
    if isinstance(step, int) or (step.isascii() and step.isdigit() and (step == "0" or step[0] != "0")):
        return int(step)
    raise LookupError(step)
