"""Endpoints: URLs with an optional method prefix, `PATCH:https://host/path` (contract 1.5).

`webr://anything` is answered by the subscription's script (contract 8.2).
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError

from broker_project.core.egress import METADATA, EgressPolicy, Host, InvalidHost, host_in

MAX_ENDPOINT_LENGTH: Final = 2048
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET")
DEFAULT_METHOD: Final = "POST"
DEFAULT_TIMEOUT_SECONDS: Final = 15
MAX_TIMEOUT_SECONDS: Final = 60
"""How long an endpoint may take for its answer."""
SCRIPTED: Final = "webr://"
"""The beginning of endpoints that are scripts."""

_PREFIX = re.compile(rf"({'|'.join(METHODS)}):(?=https?://)")
_OF_ENDPOINTS: Final = (
    f"an absolute http:// or https:// URL, if need be with one of {', '.join(METHODS)} and ':' before it"
)
_VISIBLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method and an absolute http or https URL."""

    method: str
    url: str


def is_scripted(text: str) -> bool:
    """Return whether an endpoint is answered by a script, without a request."""
    return text.startswith(SCRIPTED)


def parse_endpoint(text: str) -> Endpoint:
    """Return the method and URL that `text` names; raise `ValidationError`, saying what to change, if it has none."""
    _check_text(text)
    prefix = _PREFIX.match(text)
    url = text[prefix.end() :] if prefix else text
    _host_of(url, wanted=_OF_ENDPOINTS)
    return Endpoint(prefix.group(1) if prefix else DEFAULT_METHOD, url)


def validate_endpoint(text: str) -> None:
    """Raise `ValidationError` unless `text` is an endpoint, or stands for a script."""
    if is_scripted(text):
        _check_text(text)
    else:
        parse_endpoint(text)


def validate_monitor_url(text: str) -> None:
    """Raise `ValidationError` unless `text` is an http or https URL without a method: a monitor is asked with GET."""
    _check_text(text)
    if _PREFIX.match(text):
        raise _refused("Leave the method out: a monitor is asked with GET.")
    _host_of(text, wanted="an absolute http:// or https:// URL")


def check_reach(text: str, egress: EgressPolicy, *, is_operator: bool = True) -> None:
    """Raise `ValidationError` for an address that may not be connected to; of host names that is checked later.

    Only whoever runs the broker, `is_operator`, learns which setting would allow it.
    """
    if not text or is_scripted(text):
        return
    host = _host_of(parse_endpoint(text).url, wanted=_OF_ENDPOINTS)
    if host.address and (refusal := egress.refusal(str(host.address))):
        allowed = "that address itself" if refusal == METADATA else "its network"
        instead = f"let BROKER_ALLOWED_NETWORKS name {allowed}" if is_operator else "ask whoever runs this service"
        raise _refused(f"Nothing is sent to {host.name} ({refusal}). Give a public address, or {instead}.")


def _check_text(text: str) -> None:
    if len(text) > MAX_ENDPOINT_LENGTH:
        raise _refused(f"An endpoint has at most {MAX_ENDPOINT_LENGTH} characters, this one {len(text)}.")
    if not _VISIBLE.fullmatch(text) or "\\" in text:
        raise _refused(
            "Percent-encode spaces, backslashes, control and non-ASCII characters in the endpoint; write a host in "
            "another script in its ASCII form, xn--…."
        )


def _host_of(url: str, *, wanted: str) -> Host:
    """Return the host of an absolute http or https URL without login; raise `ValidationError`, asking for `wanted`."""
    try:
        parts = urlsplit(url)
    except ValueError as broken:
        raise _refused(f"The endpoint is not a URL: {broken}.") from None
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise _refused(f"Give {wanted}.")
    if "@" in parts.netloc:
        raise _refused("Leave the login out of the URL; set an Authorization header instead.")
    if parts.fragment:
        raise _refused("Leave the #fragment out: it is never sent.")
    try:
        return host_in(parts.netloc)
    except InvalidHost as broken:
        raise _refused(str(broken)) from None


def _refused(text: str) -> ValidationError:
    return ValidationError(text, code="endpoint")
