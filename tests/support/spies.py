"""Note with what a function is called."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Noted = TypeVar("Noted")


def spied(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, note: Callable[..., Noted]) -> list[Noted]:
    """Return a list that gets, before each call of the module's function, what `note` returns for its arguments."""
    function, noted = getattr(module, name), list[Noted]()

    def spy(*arguments: Any, **named: Any) -> Any:
        noted.append(note(*arguments, **named))
        return function(*arguments, **named)

    monkeypatch.setattr(module, name, spy)
    return noted
