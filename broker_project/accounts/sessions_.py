"""What a session knows beside who has logged in: since when, when it was seen last, and which second factor was proved.

The idle end is Django's own: a session that is not stored again for `SESSION_COOKIE_AGE` is gone.
"""

from typing import Final

from django.contrib.sessions.backends.base import SessionBase

from broker_project.accounts.models import SecondFactor

BEGAN: Final = "began"
SEEN: Final = "seen"
PROVED: Final = "proved"

SEEN_EVERY_SECONDS: Final = 60
"""Storing at each page that somebody is there would cost a write each."""


def is_over(session: SessionBase, *, now: float, most_seconds: int) -> bool:
    """Tell whether it has lasted for as long as one may, however much was done in it."""
    return now - float(session.get(BEGAN, now)) > most_seconds


def see(session: SessionBase, *, now: float) -> None:
    """Note that somebody is there."""
    session.setdefault(BEGAN, now)
    if now - float(session.get(SEEN, 0)) > SEEN_EVERY_SECONDS:
        session[SEEN] = now


def prove(session: SessionBase, factor: SecondFactor) -> None:
    """Note that this very second factor was proved in it, under a new key."""
    session[PROVED] = _name_of(factor)
    session.cycle_key()


def has_proved(session: SessionBase, factor: SecondFactor) -> bool:
    """Tell whether this second factor, and not a former one, was proved in it."""
    return session.get(PROVED) == _name_of(factor)


def _name_of(factor: SecondFactor) -> str:
    return str(factor.confirmed_at)
