"""Histories drawn by a seed: what can happen, how often, and with what.

Not a state machine of hypothesis': that leaves out half of its rules in each example, and most of its examples hardly
differ from the ones before, so that in a mailbox, where one thing follows upon another, next to nothing would happen.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar

Draw = Callable[[Random], Any]
Method = TypeVar("Method", bound=Callable[..., None])


class Happenings:
    """The methods of a class that may be called, in any order."""

    def __init__(self) -> None:
        self._often: dict[str, int] = {}
        self._arguments: dict[str, dict[str, Draw]] = {}

    def happens(self, often: int = 1, **arguments: Draw) -> Callable[[Method], Method]:
        """Let a method be one of them, that often as likely as others, with arguments that are drawn."""

        def register(method: Method) -> Method:
            self._often[method.__name__], self._arguments[method.__name__] = often, arguments
            return method

        return register

    def drawn(self, random: Random, steps: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Draw what happens: the names of methods, and their arguments."""
        for name in random.choices([*self._often], [*self._often.values()], k=steps):
            yield name, {argument: draw(random) for argument, draw in self._arguments[name].items()}


def one_of(*choices: object) -> Draw:
    return lambda random: random.choice(choices)


def some_of(choices: range) -> Draw:
    """Draw one to four."""
    return lambda random: random.choices(choices, k=random.randint(1, 4))
