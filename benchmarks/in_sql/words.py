"""The broker's words as parameters of statements: none of them lists a status, a kind or an error by itself."""

from typing import Any

from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.quantiles import GROWTH, LONGEST, NO_TIME


def parameters(words: Vocabulary, window: Window, *, objective: float) -> dict[str, Any]:
    """Return what the statements ask for."""
    return {
        "start": window.start,
        "end": window.end,
        "delivered": words.delivered,
        "redundant": words.redundant,
        "neutral": list(words.neutral),
        "reply_kind": words.reply_kind,
        "pulled_kind": words.pulled_kind,
        "pull_mode": words.pull_mode,
        "sync_kind": words.sync_kind,
        "holding": [f"{kind} {status}" for kind, statuses in words.holding for status in statuses],
        "ending": [f"{kind} {status}" for kind, statuses in words.ending for status in statuses],
        "means_hold": words.means_hold,
        "means_end": words.means_end,
        "patterns": [_pattern(pattern) for pattern, _ in words.failures],
        "classes": [kind for _, kind in words.failures],
        "unknown_failure": words.unknown_failure,
        "growth": GROWTH,
        "longest": LONGEST,
        "no_time": NO_TIME,
        "objective": objective,
    }


def _pattern(python: str) -> str:
    """Return a pattern of Python as PostgreSQL reads it, which calls the end of a word another name."""
    return rf"(?p)^(?:{python})".replace(r"\b", r"\y")
