"""Rate limits of the API: of each key, and of whoever fails to show one.

The `RateLimit` fields are those of draft-ietf-httpapi-ratelimit-headers, with one policy, `default`.
"""

import time
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.exceptions import APIException
from rest_framework.request import Request

from broker_project.core.api.problems import ProblemType, register
from broker_project.core.rate_limit import Rate, RateLimiter, client_prefix
from subscriptions.credentials.scopes import effective_limit
from subscriptions.credentials.tokens import recent_tokens
from subscriptions.models import ApiKey

RATE: Final = "broker.rate"
"""Where a request bears how its key stands."""
POLICY: Final = '"default"'
WINDOW_SECONDS: Final = 60

_keys: Final = RateLimiter()
_failing: Final = RateLimiter()


class TooManyRequests(APIException):
    """A key, or an address that shows none that is good, has come too often."""

    def __init__(self, detail: str, wait: int) -> None:
        super().__init__(detail)
        self.wait = wait


register({TooManyRequests: ProblemType(429, "too_many_requests", "Too many requests")})


def count_request(request: Request, key: ApiKey) -> None:
    """Count a request of a key.

    Raises:
        TooManyRequests: it has none left at the moment.

    """
    limit = effective_limit(key.requests_per_minute, settings.REQUESTS_PER_MINUTE)
    if limit is None:
        return
    rate = _keys.spend(key.pk, limit, time.monotonic_ns())
    request.META[RATE] = rate
    if rate.wait:
        raise TooManyRequests(f"This key may send {limit} requests a minute.", rate.wait)


def refuse_guessing(request: Request, *, at: str) -> None:
    """Refuse who has guessed wrong too often: nothing is looked up for them.

    Raises:
        TooManyRequests: too much has failed from this address lately.

    """
    limit: int = settings.FAILURES_PER_MINUTE
    if limit and (rate := _failing.look(_guesser(request, at), limit, time.monotonic_ns())).wait:
        raise TooManyRequests("Too much from this address has failed.", rate.wait)


def count_failure(request: Request, *, at: str) -> None:
    """Count what failed for want of a key or a token that is good."""
    if settings.FAILURES_PER_MINUTE:
        _failing.spend(_guesser(request, at), settings.FAILURES_PER_MINUTE, time.monotonic_ns())


def forget() -> None:
    """Begin anew with everybody."""
    for counted in (recent_tokens, _keys, _failing):
        counted.forget()


def _guesser(request: Request, at: str) -> tuple[str, str]:
    return at, client_prefix(request.META.get("REMOTE_ADDR", ""))


def rate_limit_headers(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Say with every answer to a key that is limited how it stands."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        rate: Rate | None = request.META.get(RATE)
        if rate is not None:
            response.headers["RateLimit-Policy"] = f"{POLICY};q={rate.limit};w={WINDOW_SECONDS}"
            response.headers["RateLimit"] = f"{POLICY};r={rate.left};t={rate.full_in}"
        return response

    return answer
