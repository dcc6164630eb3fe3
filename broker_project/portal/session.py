"""Portal sessions: the token of a short-lived subscriber key in a cookie, with which pages call the API in-process.

The cookie is the portal's own: it is no login of the admin site. In a frame of another site it is one that browsers
keep for that site alone (`Partitioned`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from io import BytesIO
from secrets import token_hex
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from csp.constants import NONE
from csp.utils import build_policy
from django.conf import settings
from django.core import signing
from django.core.handlers.wsgi import WSGIRequest
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import resolve
from django.views.decorators.csrf import csrf_exempt
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from broker_project.portal.operations import NOTES
from broker_project.server.browser_headers import BASE, POLICY, SAME_ORIGIN
from subscriptions.api.authentication import FOUND, RATE, ApiKeyAuthentication, TooManyRequests
from subscriptions.credentials.keys import Asked, FoundKey
from subscriptions.credentials.portal_links import note_form
from subscriptions.credentials.tokens import digest_of
from subscriptions.models import ApiKey, KeyKind

JSON: Final = "application/json"
OF_PAGE: Final = (
    *("REMOTE_ADDR", "SERVER_NAME", "SERVER_PORT", "SERVER_PROTOCOL", "HTTP_HOST"),
    *("wsgi.url_scheme", "wsgi.errors", RATE),
)
"""What a call of the API takes over from the page's request: the page has been counted for the rate limit."""
FORM_TOKEN: Final = "form_token"  # noqa: S105 - the name of a field
FORMS: Final = "portal.form"
"""What the signature of a form's token is for."""
NONCE_CHARACTERS: Final = 16
"""The beginning of a form's token, which differs from form to form."""
IN_THE_PORTAL: Final = {
    "not_found": "There is nothing at this address, or it was deleted.",
    "does_not_exist": "Nothing has this name. Choose one that is suggested.",
    "version_mismatch": "Somebody has changed this meanwhile. Open the page again, and repeat your change.",
    "too_many_secrets": "Several former secrets sign already. End the overlap of secrets first.",
    "forbidden": "Your link does not allow this. Ask for one that does.",
}
"""What people read instead of the API's own words, by the code of a problem or of an error in it."""


class Refused(Exception):
    """A request that is refused, by the API or for its session: its text says why."""

    def __init__(
        self,
        why: object,
        status: int,
        title: str,
        errors: Sequence[Mapping[str, str]] = (),
        retry_after: str | None = None,
    ) -> None:
        super().__init__(str(why))
        self.status, self.title, self.retry_after = status, title, retry_after
        self.errors = [(_field_of(one), IN_THE_PORTAL.get(one["code"], one["detail"])) for one in errors]
        self.errors = self.errors or [("", str(why))]
        """Fields, and what is wrong with them; "" stands for the whole."""


def _field_of(error: Mapping[str, str]) -> str:
    return error.get("parameter") or error.get("pointer", "").removeprefix("#/").partition("/")[0]


@dataclass(frozen=True, slots=True)
class Portal:
    """One subscriber's portal, in one request."""

    request: HttpRequest
    token: str
    key: ApiKey

    @property
    def subscriber(self) -> str:
        """The subscriber's name."""
        return str(self.key.subscriber and self.key.subscriber.name)

    @property
    def form_token(self) -> str:
        """What one form of this session has, and no form of another site."""
        nonce = token_hex(NONCE_CHARACTERS // 2)
        return nonce + signing.Signer(salt=FORMS).signature(nonce + self.token)

    def check_form(self) -> None:
        """Raise `Refused` for a form that another site may have sent."""
        if self.request.method != "POST":
            return
        given = self.request.POST.get(FORM_TOKEN, "")
        nonce, signature = given[:NONCE_CHARACTERS], given[NONCE_CHARACTERS:]
        try:
            signing.Signer(salt=FORMS).unsign(f"{nonce}{self.token}:{signature}")
        except signing.BadSignature:
            why = "Go back, reload the page and try again."
            raise Refused(why, HTTPStatus.FORBIDDEN, "This form is of another session") from None

    @contextmanager
    def once(self) -> Iterator[None]:
        """Let a form do its work once, also if it is sent twice at the same moment; again if that fails.

        That it was sent is noted in the transaction of the work: so exactly what was done is known as done.
        """
        with transaction.atomic():
            if not note_form(self.key.pk, self.request.POST[FORM_TOKEN][:NONCE_CHARACTERS]):
                why = "This was done already, and was not done again."
                raise Refused(why, HTTPStatus.CONFLICT, "This was done already")
            yield

    def call(self, method: str, path: str, body: Any = None, *, query: str = "", version: str = "") -> Any:
        """Return the answer of an operation of the API; raise `Refused` for a problem.

        `path` is below `/api/v1/`; with `version`, a change must be of that version.
        """
        variables = _call_variables(self.request, self.token, method, path, body)
        variables |= {"QUERY_STRING": query, FOUND: FoundKey(Asked(digest_of(self.token)), self.key)}
        if version:
            variables["HTTP_IF_MATCH"] = f'"{version}"'
        request = WSGIRequest(variables)
        found = resolve(request.path_info)
        response = found.func(request, *found.args, **found.kwargs)
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            problem = response.data
            why = IN_THE_PORTAL.get(problem["code"], problem["detail"])
            errors, retry_after = problem.get("errors", ()), response.headers.get("Retry-After")
            raise Refused(why, response.status_code, problem["title"], errors, retry_after)
        return response.data

    def page(self, name: str, *, refused: Refused | None = None, **context: Any) -> HttpResponse:
        """Return a page of the portal, which also says why something was refused."""
        shown = {"errors": refused.errors if refused else (), "note": NOTES.get(self.request.GET.get("done", ""))}
        return _shown(self.request, name, {**context, **shown, "portal": self}, refused)


def _shown(request: HttpRequest, name: str, context: dict[str, Any], refused: Refused | None) -> HttpResponse:
    shown = render(request, f"portal/{name}.html", {**context, "logo": settings.PORTAL_LOGO})
    if refused:
        shown.status_code = refused.status
        if refused.retry_after is not None:
            shown.headers["Retry-After"] = refused.retry_after
    return shown


def _refusal(request: HttpRequest, refused: Refused) -> HttpResponse:
    return _shown(request, "refused", {"refused": refused}, refused)


def _call_variables(request: HttpRequest, token: str, method: str, path: str, body: Any) -> dict[str, Any]:
    content = b"" if body is None else orjson.dumps(body)
    return {
        **{name: request.META[name] for name in OF_PAGE if name in request.META},
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": f"/api/v1/{path}",
        "CONTENT_TYPE": JSON,
        "CONTENT_LENGTH": str(len(content)),
        "wsgi.input": BytesIO(content),
        "HTTP_AUTHORIZATION": f"Bearer {token}",
    }


def portal_of(request: HttpRequest) -> Portal:
    """Return the session of a request's cookie; raise `Refused` without a valid one."""
    token = request.COOKIES.get(settings.PORTAL_COOKIE_NAME, "")
    asked = Request(WSGIRequest(_call_variables(request, token, "GET", "", None)))
    try:
        found = ApiKeyAuthentication().authenticate(asked) if token else None
    except AuthenticationFailed:
        found = None
    if found is None or found[1].kind != KeyKind.SUBSCRIBER:
        raise Refused("Ask for a new link.", HTTPStatus.UNAUTHORIZED, "Your session has ended")
    if RATE in asked.META:
        request.META[RATE] = asked.META[RATE]
    return Portal(request, token, found[1])


def check_own_page(request: HttpRequest) -> None:
    """Raise `Refused` unless the browser says that the form is on a page of this site."""
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin", "").partition("://")[2]
    if not (site in {"same-origin", "none"} if site else origin == request.get_host()):
        raise Refused("Open the link itself.", HTTPStatus.FORBIDDEN, "This form is of another site")


def public_page(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponseBase]:
    """Declare a page of the portal that needs no session: refusals are pages, and all have the portal's headers."""

    @wraps(view)
    def answer(request: HttpRequest, **address: Any) -> HttpResponseBase:
        try:
            response = view(request, **address)
        except Refused as refused:
            response = _refusal(request, refused)
        except TooManyRequests as refused:
            why = f"{refused} Try again in {refused.wait} seconds."
            wait = Refused(why, HTTPStatus.TOO_MANY_REQUESTS, "Too many requests", retry_after=str(refused.wait))
            response = _refusal(request, wait)
        except Http404:
            response = _refusal(request, Refused(IN_THE_PORTAL["not_found"], HTTPStatus.NOT_FOUND, "Not found"))
        response.xframe_options_exempt = bool(settings.PORTAL_ORIGINS)
        for name, value in _headers().items():
            response.headers.setdefault(name, value)
        return response

    return csrf_exempt(answer)


def page(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponseBase]:
    """Declare a page of one subscriber: the view gets its `Portal` instead of the request."""

    @wraps(view)
    def answer(request: HttpRequest, **address: Any) -> HttpResponse:
        portal = portal_of(request)
        portal.check_form()
        return view(portal, **address)

    return public_page(answer)


def _headers() -> dict[str, str]:
    """Return the headers of the portal's pages: who may frame them, and that no address of one is passed on."""
    logo = urlsplit(settings.PORTAL_LOGO)
    images = [*SAME_ORIGIN["img-src"], *([f"{logo.scheme}://{logo.netloc}"] if logo.netloc else [])]
    framed = {"frame-ancestors": settings.PORTAL_ORIGINS or [NONE]}
    policy = BASE | SAME_ORIGIN | {"img-src": images} | framed
    return {
        POLICY: build_policy(policy),
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def keep_token(response: HttpResponse, token: str, max_age: int) -> None:
    """Set the cookie of a session; `max_age` of 0 removes it. Framed by another site, it is for that site alone."""
    is_framed = bool(settings.PORTAL_ORIGINS)
    response.set_cookie(
        settings.PORTAL_COOKIE_NAME,
        token,
        max_age=max_age,
        secure=is_framed or settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="None" if is_framed else "Lax",
    )
    if is_framed:
        cookie = response.cookies.pop(settings.PORTAL_COOKIE_NAME)
        response.headers["Set-Cookie"] = f"{cookie.OutputString()}; Partitioned"
