"""The pages of the portal. Each asks the API with the subscriber's key, and shows its answers."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone

from broker_project.core.api.fields import id_of
from broker_project.portal.operations import OPERATIONS, SUBSCRIPTION, offered
from broker_project.portal.session import (
    IN_THE_PORTAL,
    Portal,
    Refused,
    check_own_page,
    keep_token,
    page,
    portal_of,
    public_page,
)
from delivery.status.line_status import LineState
from delivery.status.subscriber_status import BUSY, subscriber_status
from delivery.statuses import MESSAGE_ID_PREFIX, DeliveryStatus
from subscriptions.api.authentication import check_failures, count_failure
from subscriptions.credentials import keys
from subscriptions.credentials.portal_links import log_portal, open_link, subscriber_of
from subscriptions.credentials.scopes import Scope
from subscriptions.credentials.tokens import digest_of
from subscriptions.models import ApiKey, EventKind, Status, Subscriber
from subscriptions.names import is_own

SAVED, STARTED = "saved", "started"
NOTES: Final = {SAVED: "Saved.", STARTED: "The replay has started."}
"""What has been done by forms, as the page that follows says it."""
WELL: Final = (*BUSY, LineState.WAITING, LineState.DELAYED)
"""States in which a subscriber's people need not do anything."""
WITHOUT_SECONDS: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")
"""A time as browsers send it, in UTC as the page says."""
TEXTS: Final = ("endpoint", "header_filter_string", "filter")
"""Fields of a subscription that the API takes as they are typed."""
LINKS: Final = "links"
"""What a client without a usable link may be guessing."""
MAX_OF_MESSAGE: Final = 20
"""Deliveries that the page of a message tells of."""
LISTED: Final = 100
"""Subscriptions that a page lists."""


@public_page
def open_portal(request: HttpRequest, link: str) -> HttpResponse:
    """Ask, since programs that preview links open them too; then begin the session of a link, and end the former."""
    if request.method != "POST":
        context = {"logo": settings.PORTAL_LOGO, "replaced": _replaced_by(link, request)}
        shown = render(request, "portal/open.html", context)
        shown.headers["Referrer-Policy"] = "strict-origin"  # else a form has no `Origin`
        return shown
    check_own_page(request)
    check_failures(request, at=LINKS)
    now = timezone.now()
    token = open_link(link, now=now)
    if token is None:
        count_failure(request, at=LINKS)
        raise Refused("It was opened before, or has expired. Ask for a new one.", 410, "This link opens nothing")
    key = ApiKey.objects.select_related("subscriber").get(digest=digest_of(token))
    log_portal("portal.opened", key)
    former = digest_of(request.COOKIES.get(settings.PORTAL_COOKIE_NAME, ""))
    ApiKey.objects.filter(is_portal=True, digest=former, revoked_at=None).update(revoked_at=now)
    response = HttpResponseRedirect(reverse("portal:overview"))
    keep_token(response, token, int((key.expires_at - now).total_seconds()) if key.expires_at else 0)
    return response


def _replaced_by(link: str, request: HttpRequest) -> str:
    """Return the subscriber whose session a link of another one would end; empty if there is none."""
    try:
        present = portal_of(request)
    except Refused:
        return ""
    return "" if subscriber_of(link) == present.key.subscriber_id else present.subscriber


@public_page
def theme(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 - Django's signature
    """Return the colours of the portal, with black or white on its own colour."""
    red, green, blue = bytes.fromhex(settings.PORTAL_COLOR.removeprefix("#"))
    is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 150  # noqa: PLR2004 - where black reads better
    styles = f":root {{ --brand: {settings.PORTAL_COLOR}; --on-brand: {'#000' if is_light else '#fff'}; }}\n"
    return HttpResponse(styles, content_type="text/css")


@page
def leave(portal: Portal) -> HttpResponse:
    """End the session: its key is revoked."""
    if portal.request.method != "POST":
        return HttpResponseRedirect(reverse("portal:overview"))
    log_portal("portal.left", keys.revoke(ApiKey.objects.filter(pk=portal.key.pk), now=timezone.now()))
    response = portal.page("left", has_left=True)
    keep_token(response, "", 0)
    return response


@page
def overview(portal: Portal) -> HttpResponse:
    """Show how the subscriber is, its numbers and its subscriptions."""
    subscriber, now = get_object_or_404(Subscriber, pk=portal.key.subscriber_id), timezone.now()
    health = subscriber_status(subscriber, now)
    cursor = {name: value for name, value in portal.request.GET.items() if name == "cursor"}
    listed = portal.call("GET", "subscriptions", query=urlencode({"limit": LISTED, **cursor}))
    return portal.page(
        "overview",
        health=health,
        is_well=subscriber.status == Status.ACTIVE and health.state in WELL,
        health_sentence=health.sentence(now),
        numbers=portal.call("GET", f"subscribers/{portal.subscriber}/statistics"),
        dead=[one for one in portal.call("GET", "dead-letters/counts").items() if one[1]],
        subscriptions=listed["items"],
        pages=_pages(listed),
        note=_note(portal, "subscriptions"),
    )


def _subscriptions(portal: Portal) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = portal.call("GET", "subscriptions", query=f"limit={LISTED}")["items"]
    return found


def _topics(portal: Portal) -> list[dict[str, Any]]:
    """Return the event types that a subscriber's key subscribes to."""
    listed = portal.call("GET", "event-types", query=f"limit={LISTED}")["items"]
    return [one for one in listed if one["kind"] == EventKind.TOPIC and not is_own(one["name"])]


def _pages(listed: Mapping[str, Any]) -> dict[str, str]:
    """Return the query strings of the previous and the next page, each empty if there is no such page."""
    return {name: urlsplit(listed.get(name) or "").query for name in ("previous", "next")}


def _note(portal: Portal, records: str) -> str:
    """Return what has been done, on the page that follows."""
    done = portal.request.GET.get("done", "")
    if done in NOTES:
        return NOTES[done]
    return OPERATIONS[records][done].done if done in OPERATIONS[records] else ""


@page
def subscription(portal: Portal, id: int | None = None) -> HttpResponse:
    """Show a subscription and save its form, or that of a new one."""
    if id is None and Scope.CONFIGURE not in portal.key.scopes:
        raise Refused(IN_THE_PORTAL["forbidden"], 403, "This link only shows subscriptions")
    form, errors = portal.request.POST, {}
    if portal.request.method == "POST":
        try:
            return _saved(portal, id, form)
        except Refused as refused:
            errors, status = refused.errors, refused.status
    else:
        status = 200
    stored = portal.call("GET", f"subscriptions/{id}") if id else {}
    return portal.page(
        "subscription",
        status,
        subscription=stored,
        form=form or {**stored, "headers": "".join(f"{name}:\n" for name in stored.get("headers") or ())},
        errors=errors,
        event_types=[] if id else _topics(portal),
        operations=[*offered("subscriptions", stored, portal.key.scopes)] if id else [],
        note=_note(portal, "subscriptions"),
    )


def _saved(portal: Portal, id: int | None, form: QueryDict) -> HttpResponse:
    """Create or change a subscription as the form says; raise `Refused`."""
    body = {name: _text(form, name) for name in TEXTS} | {"headers": _headers_in(_text(form, "headers"))}
    if id:
        portal.call("PATCH", f"subscriptions/{id}", body, version=form.get("version", ""))
        return HttpResponseRedirect(f"{reverse('portal:subscriptions', args=[id])}?done={SAVED}")
    event = _text(form, "event_type")
    wanted = {"event_pattern" if "*" in event else "event_type": event, "subscriber": portal.subscriber}
    with portal.once():
        created = portal.call("POST", "subscriptions", body | wanted)
    return portal.page("secret", subscription=created)


def _text(form: QueryDict, name: str) -> str:
    return form.get(name, "").replace("\r\n", "\n").strip()


def _headers_in(lines: str) -> dict[str, str | None]:
    """Return the headers of lines `Name: value`. A name without a value gets None: its stored value is kept."""
    pairs = (line.partition(":") for line in lines.splitlines() if line.strip())
    return {name.strip(): value.strip() or None for name, _, value in pairs}


@page
def operate(portal: Portal, records: str, id: int, operation: str) -> HttpResponse:
    """Do what a button says, and show what the API answers if that is all there is to see of it."""
    known = OPERATIONS.get(records, {}).get(operation)
    if known is None:
        raise Http404
    if portal.request.method != "POST":
        return HttpResponseRedirect(_page_after(records, "", id))
    path = f"{records}/{id}" if known.method == "DELETE" else f"{records}/{id}/{operation}"
    with portal.once():
        answer = portal.call(known.method, path, known.body) or {}
    if "signing_secret" in answer:
        return portal.page("secret", subscription=answer)
    if known is SUBSCRIPTION["send-test-event"]:
        return portal.page("test_event", answer=answer, id=id)
    then = _page_after(records, operation, answer.get("id", id))
    return HttpResponseRedirect(f"{then}?{urlencode({'done': operation})}")


def _page_after(records: str, operation: str, id: int) -> str:
    if records == "replays":
        return reverse("portal:replays")
    return reverse("portal:overview") if operation == "delete" else reverse(f"portal:{records}", args=[id])


@page
def filter_lab(portal: Portal, id: int) -> HttpResponse:
    """Try a filter on a message, and save it."""
    stored = portal.call("GET", f"subscriptions/{id}")
    form: Mapping[str, Any] = portal.request.POST or {**stored, **_example(portal, stored["event_type"])}
    verdict, errors = None, {}
    if portal.request.method == "POST":
        filters = {name: _text(portal.request.POST, name) for name in ("header_filter_string", "filter")}
        try:
            if "save" in form:
                portal.call("PATCH", f"subscriptions/{id}", filters, version=form.get("version", ""))
                return HttpResponseRedirect(f"{reverse('portal:subscriptions', args=[id])}?done={SAVED}")
            verdict = portal.call("POST", "filters/test", filters | _message_in(portal.request.POST))
        except Refused as refused:
            errors = refused.errors
    newest = portal.call("GET", "deliveries", query=f"subscription={id}&limit=20")["items"]
    return portal.page(
        "filter", subscription=stored, form=form, verdict=verdict, errors=errors, newest=newest, status=_status(errors)
    )


def _status(errors: Mapping[str, str]) -> int:
    return 400 if errors else 200


def _example(portal: Portal, event_type: str | None) -> dict[str, str]:
    """Return a message of an event type, or of any of a pattern, as fields of the form."""
    if not event_type:
        return {"body": "{}"}
    found = portal.call("GET", f"event-types/{event_type}")
    return {"body": found["sample"], "content_type": found["content_type"]}


def _message_in(form: QueryDict) -> dict[str, Any]:
    """Return the stored message that a form names, or the one that it has."""
    if text := _text(form, "message_id"):
        return {"message_id": id_of(text, MESSAGE_ID_PREFIX) or text}
    given = {name: value for name in ("content_type", "filter_string") if (value := _text(form, name))}
    return {"body": form.get("body", ""), **given}


@page
def deliveries(portal: Portal) -> HttpResponse:
    """List deliveries, filtered as the API does it."""
    query = _query_of(portal.request.GET, (*REPLAY_FIELDS, "status", "cursor"))
    errors: dict[str, str] = {}
    try:
        found = portal.call("GET", "deliveries", query=urlencode(query))
    except Refused as refused:
        found, errors = {"items": []}, refused.errors
    subscriptions = _subscriptions(portal)
    events = {one["id"]: one["event_type"] or one["event_pattern"] for one in subscriptions}
    return portal.page(
        "deliveries",
        _status(errors),
        found=[(one, events.get(one["subscription_id"], "")) for one in found["items"]],
        pages=_pages(found),
        searched_until=found.get("searched_until"),
        form=query,
        errors=errors,
        statuses=DeliveryStatus.choices,
        subscriptions=subscriptions,
    )


def _query_of(form: QueryDict, names: Collection[str]) -> dict[str, str]:
    """Return what a form asks for in the fields of these names, without empty ones."""
    given = {name: value for name in names if (value := _text(form, name))}
    return {name: f"{value}:00Z" if WITHOUT_SECONDS.fullmatch(value) else value for name, value in given.items()}


@page
def message(portal: Portal, id: int) -> HttpResponse:
    """Show a message by its deliveries to the subscriber, each with its newest request and answer."""
    found = portal.call("GET", "deliveries", query=f"message={id}&limit={MAX_OF_MESSAGE}")["items"]
    if not found:
        raise Http404
    told = [_told(portal, one["id"]) for one in reversed(found)]
    return portal.page("message", id=id, told=told, is_cut=len(found) == MAX_OF_MESSAGE)


def _told(portal: Portal, id: int, number: int | None = None) -> dict[str, Any]:
    """Return a delivery with its attempts, and one of them, by default the newest, with its request and answer."""
    found = portal.call("GET", f"deliveries/{id}")
    numbers = [number] if number else [one["number"] for one in found["history"][-1:]]
    exchanges = [portal.call("GET", f"deliveries/{id}/attempts/{one}") for one in numbers]
    return {"delivery": found, "exchanges": exchanges}


@page
def delivery(portal: Portal, id: int) -> HttpResponse:
    """Show a delivery and its attempts, one of them with its request and answer."""
    told = _told(portal, id, id_of(portal.request.GET.get("attempt", "")))
    found = told["delivery"]
    return portal.page(
        "delivery",
        **told,
        operations=[*offered("deliveries", found, portal.key.scopes)],
        note=_note(portal, "deliveries"),
    )


@page
def replays(portal: Portal) -> HttpResponse:
    """List replays; count or start one."""
    form, count, errors = portal.request.POST, None, {}
    if portal.request.method == "POST":
        asked: dict[str, Any] = {**_query_of(form, REPLAY_FIELDS)}
        whose = {} if "subscription" in asked else {"subscriber": portal.subscriber}
        if subscription_id := id_of(asked.get("subscription", "")):
            asked["subscription"] = subscription_id
        try:
            if "start" in form:
                with portal.once():
                    portal.call("POST", "replays", asked | whose)
                return HttpResponseRedirect(f"{reverse('portal:replays')}?done={STARTED}")
            count = portal.call("POST", "replays", asked | whose | {"dry_run": True})
        except Refused as refused:
            errors = refused.errors
    found = portal.call("GET", "replays", query=f"limit={LISTED}")["items"]
    return portal.page(
        "replays",
        _status(errors),
        found=[(one, [*offered("replays", one, portal.key.scopes)]) for one in found],
        form=form,
        count=count,
        errors=errors,
        subscriptions=_subscriptions(portal),
        note=_note(portal, "replays"),
    )


REPLAY_FIELDS: Final = ("subscription", "from", "to")
