"""What answers tell browsers, for every address there is."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

pytestmark = pytest.mark.django_db

SAMPLES = {"int": "1", "name": "nothing", "slug": "nothing", "path": "nothing", "str": "nothing"}
PARAMETER = re.compile(r"<(?:(\w+):)?\w+>")
EVERYWHERE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FRAMES_AND_FORMS = {
    "default-src 'none'",
    "object-src 'none'",
    "base-uri 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
}
DOCUMENT = FRAMES_AND_FORMS | {"sandbox"}
PAGE = FRAMES_AND_FORMS | {"img-src 'self' data:", "font-src 'self'", "connect-src 'self'"}
DOCUMENTATION = PAGE | {"script-src 'self'", "style-src 'self'"}
ADMIN = PAGE | {"script-src 'self' 'unsafe-eval'", "style-src 'self' 'unsafe-inline'"}


def addresses(resolver: URLResolver | None = None, before: str = "/") -> Iterator[str]:
    """Yield an address of every route, with something in the place of its parameters."""
    for pattern in (resolver or get_resolver()).url_patterns:
        route = before + re.sub(r"\\Z|[$^?]|\(.*\)", "", str(pattern.pattern))
        if isinstance(pattern, URLPattern):
            yield PARAMETER.sub(lambda parameter: SAMPLES[parameter[1] or "str"], route)
        else:
            yield from addresses(pattern, route)


def policy(headers: Mapping[str, str]) -> set[str]:
    return {directive.strip() for directive in headers["Content-Security-Policy"].split(";")}


def told(headers: Mapping[str, str]) -> dict[str, Any]:
    return {name: headers.get(name) for name in EVERYWHERE}


def test_every_answer_says_what_browsers_may_do_with_it(admin: Client, management: Client) -> None:
    walked = sorted(set(addresses()))
    assert len(walked) > 200
    for address in walked:
        answer = (admin if address.startswith("/admin/") else management).get(address)
        expected = ADMIN if address.startswith("/admin/") else DOCUMENT
        expected = DOCUMENTATION if address.startswith("/api/docs/") else expected
        assert (address, told(answer.headers), policy(answer.headers)) == (address, EVERYWHERE, expected)
        assert "camera=()" in answer.headers["Permissions-Policy"]


@pytest.mark.parametrize(
    "address", ["/nowhere", "/api/nowhere", "/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui.css"]
)
def test_files_and_what_is_not_there_are_no_documents_that_run(address: str) -> None:
    answer = Client().get(address)
    answer.close()
    assert (told(answer.headers), policy(answer.headers)) == (EVERYWHERE, DOCUMENT)
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_what_is_relaxed_for_the_admin_is_relaxed_nowhere_else(client: Client) -> None:
    for address in ("/administrator", "/api/admin/", "/api/docs/../admin/", "/Admin/"):
        assert policy(client.get(address).headers) & {"script-src 'self' 'unsafe-eval'"} == set()


def test_nobody_keeps_what_the_admin_and_the_api_answer(admin: Client, management: Client) -> None:
    for client, address in ((admin, "/admin/"), (admin, "/admin/nowhere/"), (management, "/api/v1/api-keys")):
        assert client.get(address).headers["Cache-Control"] == "no-store"


def test_scripts_and_styles_of_the_documentation_come_from_here_and_none_stand_in_the_page() -> None:
    page = Client().get("/api/docs/").content.decode()
    assert re.findall(r'(?:src|href)="(?!/static/)', page) == []
    assert re.findall(r"<script(?! src=)|<style|\son\w+=|javascript:", page) == []


def test_cookies_are_for_this_site_and_not_for_scripts(client: Client) -> None:
    cookie = Client().get("/admin/login/").cookies["broker_csrf"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["domain"]) == (True, "Strict", "/", "")


@pytest.mark.parametrize(
    "address", ["/admin/login/", "/admin/logout/", "/admin/auth/group/add/", "/admin/second-factor/begin/"]
)
def test_a_form_of_another_site_does_nothing(admin: Client, address: str) -> None:
    elsewhere = Client(enforce_csrf_checks=True)
    elsewhere.cookies = admin.cookies
    assert elsewhere.post(address, {"name": "all"}).status_code == 403
    assert elsewhere.get("/admin/").status_code == 200
