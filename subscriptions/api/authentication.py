"""Bearer API keys: `Authorization: Bearer brk_…` (contract 1.2)."""

from dataclasses import dataclass
from typing import ClassVar, Final

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from subscriptions.api.rate_limits import count_failure, count_request, refuse_guessing
from subscriptions.credentials.keys import key_for
from subscriptions.credentials.tokens import SCHEME, bearer_in, recent_tokens
from subscriptions.models import ApiKey

KEYS: Final = "keys"
"""What is guessed at."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Whoever calls with a key: DRF's `request.user`; what counts is `request.auth`, the key."""

    key: ApiKey
    is_authenticated: ClassVar[bool] = True


class ApiKeyAuthentication(BaseAuthentication):
    """Sets `request.auth` to the `ApiKey` of the bearer token; 401 if there is no usable one."""

    def authenticate(self, request: Request) -> tuple[KeyHolder, ApiKey] | None:
        """Return who calls, None without an `Authorization` header; one query."""
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            refuse_guessing(request, at=KEYS)
            count_failure(request, at=KEYS)
            return None
        key = _key_in(header, request)
        count_request(request, key)
        return KeyHolder(key), key

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002 - DRF's signature
        """Return the value of `WWW-Authenticate`."""
        return SCHEME


def _key_in(header: str, request: Request) -> ApiKey:
    token = bearer_in(header)
    if token is None:
        raise AuthenticationFailed("Authenticate with 'Authorization: Bearer' and an API key.")
    guess = hash(token)
    if guess not in recent_tokens:
        refuse_guessing(request, at=KEYS)
    key = key_for(token, now=timezone.now())
    if key is None:
        recent_tokens.discard(guess)
        count_failure(request, at=KEYS)
        raise AuthenticationFailed("This API key is unknown, revoked or expired.")
    recent_tokens.add(guess)
    return key
