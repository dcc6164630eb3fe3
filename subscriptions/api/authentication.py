"""Bearer API keys, `Authorization: Bearer brk_…` (contract 1.2), and rate limits of keys and of failures.

The `RateLimit` fields are those of draft-ietf-httpapi-ratelimit-headers, with one policy, `default`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from django.conf import settings
from django.db import Error
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import APIException, AuthenticationFailed
from rest_framework.request import Request

from broker_project.core.api.problems import ProblemType, register
from broker_project.core.db import is_away
from broker_project.core.rate_limit import Rate, RateLimiter, client_prefix
from subscriptions.credentials.keys import Asked, FoundKey, forget, key_for, keys_for, remembered_keys
from subscriptions.credentials.scopes import effective_limit
from subscriptions.credentials.tokens import SCHEME, bearer_in, could_be_token, digest_of, recent_tokens
from subscriptions.models import ApiKey

KEYS: Final = "keys"
"""What a client without a usable key may be guessing."""
FOUND: Final = "broker.found_keys"
"""Where a request notes its key and event type, which have been found for it and others; or why they were not."""
RATE: Final = "broker.rate"
"""Where a request notes the state of its key's rate limit, once it is counted."""
POLICY: Final = '"default"'
WINDOW_SECONDS: Final = 60

_requests: Final = RateLimiter()
_failures: Final = RateLimiter()


class TooManyRequests(APIException):
    """A key has reached its rate limit, or an address its limit of failures."""

    def __init__(self, detail: str, wait: int) -> None:
        super().__init__(detail)
        self.wait = wait


register({TooManyRequests: ProblemType(429, "too_many_requests")})


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """A client with a key: DRF's `request.user`. Views use `request.auth`, the key."""

    key: ApiKey
    is_authenticated: ClassVar[bool] = True


class ApiKeyAuthentication(BaseAuthentication):
    """Sets `request.auth` to the `ApiKey` of the bearer token; 401 if there is no usable one."""

    def authenticate(self, request: Request) -> tuple[KeyHolder, ApiKey] | None:
        """Return the client and its key, None without an `Authorization` header; a query if it was not found before."""
        variables = request.META
        header = variables.get("HTTP_AUTHORIZATION")
        if header is None:
            check_failures(request, at=KEYS)
            count_failure(request, at=KEYS)
            return None
        token = bearer_in(header)
        if token is None:
            raise AuthenticationFailed("Authenticate with 'Authorization: Bearer' and an API key.")
        token_hash = hash(token)
        if token_hash not in recent_tokens:
            check_failures(request, at=KEYS)
        found: FoundKey | Error | None = variables.get(FOUND)
        if isinstance(found, Error):
            raise found
        key = found.key if found else key_for(token, now=timezone.now())
        if key is None:
            recent_tokens.discard(token_hash)
            count_failure(request, at=KEYS)
            raise AuthenticationFailed("This API key is unknown, revoked or expired.")
        recent_tokens.add(token_hash)
        _count_request(variables, key)
        return KeyHolder(key), key

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002 - DRF's signature
        """Return the value of `WWW-Authenticate`."""
        return SCHEME


def _count_request(variables: dict[str, Any], key: ApiKey) -> None:
    """Count a request of a key, once however often it is read; raise `TooManyRequests` beyond the key's limit."""
    limit = effective_limit(key.requests_per_minute, settings.REQUESTS_PER_MINUTE)
    rate: Rate | None = variables.pop(RATE, None)
    if limit is None:
        return
    if rate is None or rate.limit != limit:
        rate = _requests.spend(key.pk, limit, time.monotonic_ns())
    variables[RATE] = rate
    if rate.wait:
        raise TooManyRequests(f"This key may send {limit} requests a minute.", rate.wait)


def find_keys(requests: Sequence[tuple[dict[str, Any], str]], *, remembered: bool) -> Error | None:
    """Find together the keys of several requests that are about to be authenticated, and what they publish.

    They are given by their WSGI variables and the names of their event types, empty for none. Only keys that were valid
    recently: what others may look up is limited. If all of it is remembered, the database is not asked; the statement
    that stores a publish then confirms it. With `remembered=False` it is looked up, and what is remembered is
    forgotten. If the database is away, return why: all are answered with that.
    """
    asked = {
        number: Asked(digest_of(token), event_type)
        for number, (variables, event_type) in enumerate(requests)
        if (token := bearer_in(variables.get("HTTP_AUTHORIZATION", ""))) and hash(token) in recent_tokens
    }
    now, distinct = timezone.now(), dict.fromkeys(asked.values())
    if not remembered:
        forget(distinct)
    try:
        found = remembered_keys(distinct, now=now) or keys_for(distinct, now=now)
    except Error as failure:
        if is_away(failure):
            give_up(failure, [variables for variables, _ in requests])
            return failure
        found = {}
    for number, (variables, _) in enumerate(requests):
        variables[FOUND] = found.get(asked[number]) if number in asked else None
    return None


def give_up(failure: Error, requests: Iterable[dict[str, Any]]) -> None:
    """Let requests be answered with the failure of the database, without each waiting for it again."""
    for variables in requests:
        variables[FOUND] = failure


def is_stranger(variables: Mapping[str, Any]) -> bool:
    """Return whether a request shows no key, or an unknown one from an address with too many recent failures."""
    token = bearer_in(variables.get("HTTP_AUTHORIZATION", ""))
    if token is None or not could_be_token(token):
        return True
    return hash(token) not in recent_tokens and _wait_after_failures(variables, KEYS) > 0


def check_failures(request: Request | HttpRequest, *, at: str) -> None:
    """Raise `TooManyRequests` for an address with too many recent failures; nothing is looked up for it."""
    if wait := _wait_after_failures(request.META, at):
        raise TooManyRequests("Too many requests from this address have failed.", wait)


def count_failure(request: Request | HttpRequest, *, at: str) -> None:
    """Count a request that failed because it had no usable key or token."""
    if settings.FAILURES_PER_MINUTE:
        _failures.spend(_address(request.META, at), settings.FAILURES_PER_MINUTE, time.monotonic_ns())


def _wait_after_failures(variables: Mapping[str, Any], at: str) -> int:
    """Return for how many seconds nothing is looked up for an address; 0 if it has not failed too often."""
    limit: int = settings.FAILURES_PER_MINUTE
    return _failures.look(_address(variables, at), limit, time.monotonic_ns()).wait if limit else 0


def _address(variables: Mapping[str, Any], at: str) -> tuple[str, str]:
    return at, client_prefix(variables.get("REMOTE_ADDR", ""))


def rate_limit_headers(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Add the state of the key's rate limit to every answer, if the key is limited."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        for name, value in rate_headers(request).items():
            response.headers[name] = value
        return response

    return answer


def rate_headers(request: HttpRequest) -> Mapping[str, str]:
    """Return the headers with the state of the rate limit; none if the request's key is not limited."""
    rate: Rate | None = request.META.get(RATE)
    if rate is None:
        return {}
    return {
        "RateLimit-Policy": f"{POLICY};q={rate.limit};w={WINDOW_SECONDS}",
        "RateLimit": f"{POLICY};r={rate.left};t={rate.full_in}",
    }


class BearerKeys(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The security scheme of `ApiKeyAuthentication` in OpenAPI."""

    target_class = ApiKeyAuthentication
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:  # noqa: ARG002 - its signature
        """Return the scheme."""
        return {"type": "http", "scheme": SCHEME.lower(), "description": "An API key: `Authorization: Bearer brk_…`."}
