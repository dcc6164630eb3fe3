"""The pages of the portal. Each asks the API with the subscriber's key, and shows its answers."""

import re
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone

from broker_project.core.api.fields import id_of
from broker_project.portal.operations import OPERATIONS, SAVED, STARTED, SUBSCRIPTION, offered
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
from subscriptions.credentials.portal_links import end_session, log_portal, open_link, subscriber_of
from subscriptions.credentials.scopes import Scope
from subscriptions.credentials.tokens import digest_of
from subscriptions.models import ApiKey, EventKind, Status, Subscriber
from subscriptions.names import is_own

WELL: Final = (*BUSY, LineState.WAITING, LineState.DELAYED)
"""States in which a subscriber's people need not do anything."""
WITHOUT_SECONDS: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")
"""A time as browsers send it, in UTC as the page says."""
TEXTS: Final = ("endpoint", "header_filter_string", "filter")
"""Fields of a subscription that the API takes as they are typed."""
COMPARED: Final = ("header_filter_string", "filter_string")
"""Fields that keep their outer blanks, since they are compared exactly."""
LINKS: Final = "links"
"""What a client without a usable link may be guessing."""
LISTED: Final = 100
"""Records that a page of a list has."""
TOLD: Final = 5
"""Deliveries that the page of a message tells with requests and answers: each takes two calls of the API."""
AT_ONCE: Final = 200
"""Records that are asked for at once, to be chosen from: as many as the API lists."""
MAX_CHOICES: Final = 1000
"""Records to choose from; of more, people type the name, or follow links."""


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
        raise Refused("Ask for a new one.", 410, "This link was used or has expired")
    key = ApiKey.objects.select_related("subscriber").get(digest=digest_of(token))
    log_portal("portal.opened", key)
    end_session(request.COOKIES.get(settings.PORTAL_COOKIE_NAME, ""), now=now)
    response = HttpResponseRedirect(reverse("portal:overview"))
    keep_token(response, token, int((key.expires_at - now).total_seconds()) if key.expires_at else 0)
    return response


def _replaced_by(link: str, request: HttpRequest) -> str:
    """Return the subscriber whose session would end if this link opened another subscriber's; empty if none would."""
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
    end_session(portal.token, now=timezone.now())
    response = portal.page("left", has_left=True)
    keep_token(response, "", 0)
    return response


@page
def overview(portal: Portal) -> HttpResponse:
    """Show how the subscriber is, its numbers and its subscriptions."""
    subscriber, now = get_object_or_404(Subscriber, pk=portal.key.subscriber_id), timezone.now()
    health = subscriber_status(subscriber, now)
    listed = _page_of(portal, "subscriptions")
    return portal.page(
        "overview",
        health=health,
        is_well=subscriber.status == Status.ACTIVE and health.state in WELL,
        health_sentence=health.sentence(now),
        numbers=portal.call("GET", f"subscribers/{portal.subscriber}/statistics"),
        dead=[one for one in portal.call("GET", "dead-letters/counts").items() if one[1]],
        subscriptions=listed["items"],
        pages=_pages(listed),
    )


def _page_of(portal: Portal, records: str) -> dict[str, Any]:
    """Return the page of a list that the address asks for."""
    cursor = {name: value for name, value in portal.request.GET.items() if name == "cursor"}
    found: dict[str, Any] = portal.call("GET", records, query=urlencode({"limit": LISTED, **cursor}))
    return found


def _choices(portal: Portal, records: str) -> dict[str, Any]:
    """Return the records to choose from, and whether there are more than these."""
    query, found = f"limit={AT_ONCE}", list[dict[str, Any]]()
    while query and len(found) < MAX_CHOICES:
        listed = portal.call("GET", records, query=query)
        query = _pages(listed)["next"]
        found += listed["items"]
    return {"found": found, "are_more": bool(query)}


def _pages(listed: Mapping[str, Any]) -> dict[str, str]:
    """Return the query strings of the previous and the next page, each empty if there is no such page."""
    return {name: urlsplit(listed.get(name) or "").query for name in ("previous", "next")}


@page
def subscription(portal: Portal, id: int) -> HttpResponse:
    """Show a subscription, and save its form."""
    form: Any = portal.request.POST
    why: Refused | None = None
    if portal.request.method == "POST":
        try:
            return _saved(portal, id, form)
        except Refused as refused:
            why = refused
    stored = portal.call("GET", f"subscriptions/{id}")
    name = stored["event_type"]
    kind = portal.call("GET", f"event-types/{name}")["kind"] if name else EventKind.TOPIC
    operations = [*offered("subscriptions", {**stored, "kind": kind}, portal.key.scopes)]
    form = form or _form_of(stored)
    return portal.page("subscription", refused=why, subscription=stored, form=form, operations=operations)


@page
def new_subscription(portal: Portal) -> HttpResponse:
    """Show and save the form of a new subscription, to event types that a subscriber's key subscribes to."""
    if Scope.CONFIGURE not in portal.key.scopes:
        raise Refused(IN_THE_PORTAL["forbidden"], 403, "This link only shows subscriptions")
    form: QueryDict = portal.request.POST
    why: Refused | None = None
    if portal.request.method == "POST":
        try:
            return _created(portal, form)
        except Refused as refused:
            why = refused
    listed = _choices(portal, "event-types")
    topics = [one for one in listed["found"] if one["kind"] == EventKind.TOPIC and not is_own(one["name"])]
    return portal.page("subscription", refused=why, form=form, event_types={**listed, "found": topics})


def _form_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a subscription as its form shows it; headers that cannot be decrypted are not there."""
    return {**stored, "headers": "\n".join(f"{name}:" for name in stored["headers"] or ())}


def _saved(portal: Portal, id: int, form: QueryDict) -> HttpResponse:
    """Change what the form says otherwise than it is; raise `Refused`."""
    shown = _form_of(portal.call("GET", f"subscriptions/{id}"))
    texts = {name: _text(form, name) for name in (*TEXTS, "headers") if name in form}
    changed: dict[str, Any] = {name: text for name, text in texts.items() if text != _text(shown, name)}
    if "headers" in changed:
        changed["headers"] = _headers_in(changed["headers"])
    portal.call("PATCH", f"subscriptions/{id}", changed, version=form.get("version", ""))
    return HttpResponseRedirect(f"{reverse('portal:subscriptions', args=[id])}?done={SAVED}")


def _created(portal: Portal, form: QueryDict) -> HttpResponse:
    """Create the subscription that the form says; raise `Refused`."""
    body = {name: _text(form, name) for name in TEXTS} | {"headers": _headers_in(_text(form, "headers"))}
    event = _text(form, "event_type")
    wanted = {"event_pattern" if "*" in event else "event_type": event, "subscriber": portal.subscriber}
    with portal.once():
        created = portal.call("POST", "subscriptions", body | wanted)
    return portal.page("secret", subscription=created)


def _text(form: Mapping[str, Any], name: str) -> str:
    text = str(form.get(name) or "").replace("\r\n", "\n")
    return text if name in COMPARED else text.strip()


def _headers_in(lines: str) -> dict[str, str | None]:
    """Return the headers of lines `Name: value`. A name without a value gets None: its stored value is kept."""
    pairs = [line.partition(":") for line in lines.splitlines() if line.strip()]
    found = {name.strip(): value.strip() or None for name, _, value in pairs}
    if len(found) < len(pairs):
        raise Refused("A header is there twice. Leave one line of each name.", 400, "Invalid input")
    return found


@page
def operate(portal: Portal, records: str, id: int, operation: str) -> HttpResponse:
    """Do what a button says, and show what the API answers if that is all there is to see of it."""
    known = OPERATIONS.get(records, {}).get(operation)
    if known is None:
        raise Http404
    if portal.request.method != "POST":
        return HttpResponseRedirect(_page_after(records, "", id))
    path = f"{records}/{id}" if known.method == "DELETE" else f"{records}/{id}/{operation}"
    with nullcontext() if known.is_repeatable else portal.once():
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
    verdict = None
    why: Refused | None = None
    if portal.request.method == "POST":
        filters = {name: _text(portal.request.POST, name) for name in ("header_filter_string", "filter")}
        try:
            if "save" in form:
                portal.call("PATCH", f"subscriptions/{id}", filters, version=form.get("version", ""))
                return HttpResponseRedirect(f"{reverse('portal:subscriptions', args=[id])}?done={SAVED}")
            verdict = portal.call("POST", "filters/test", filters | _message_in(portal.request.POST))
        except Refused as refused:
            why = refused
    newest = portal.call("GET", "deliveries", query=f"subscription={id}&limit=20")["items"]
    return portal.page("filter", refused=why, subscription=stored, form=form, verdict=verdict, newest=newest)


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
    why: Refused | None = None
    try:
        found = portal.call("GET", "deliveries", query=urlencode(query))
    except Refused as refused:
        found, why = {"items": []}, refused
    subscriptions = _choices(portal, "subscriptions")
    events = {one["id"]: one["event_type"] or one["event_pattern"] for one in subscriptions["found"]}
    return portal.page(
        "deliveries",
        refused=why,
        found=[(one, events.get(one["subscription_id"], "")) for one in found["items"]],
        pages=_pages(found),
        searched_until=found.get("searched_until"),
        form=query,
        statuses=DeliveryStatus.choices,
        subscriptions=subscriptions,
    )


def _query_of(form: QueryDict, names: Collection[str]) -> dict[str, str]:
    """Return what a form asks for in the fields of these names, without empty ones."""
    given = {name: value for name in names if (value := _text(form, name))}
    return {name: f"{value}:00Z" if WITHOUT_SECONDS.fullmatch(value) else value for name, value in given.items()}


@page
def message(portal: Portal, id: int) -> HttpResponse:
    """Show a message by its deliveries to the subscriber, the newest with their newest request and answer."""
    listed = portal.call("GET", "deliveries", query=f"message={id}&limit={LISTED}")
    found = listed["items"]
    if not found:
        raise Http404
    told = [_told(portal, one["id"]) for one in found[:TOLD]]
    return portal.page("message", id=id, told=told, older=found[TOLD:], are_more=bool(listed["next"]))


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
    )


@page
def replays(portal: Portal) -> HttpResponse:
    """List replays; count or start one."""
    form, count = portal.request.POST, None
    why: Refused | None = None
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
            why = refused
    found = _page_of(portal, "replays")
    return portal.page(
        "replays",
        refused=why,
        found=[(one, [*offered("replays", one, portal.key.scopes)]) for one in found["items"]],
        pages=_pages(found),
        form=form,
        count=count,
        counted={name: form.get(name, "") for name in REPLAY_FIELDS},
        subscriptions=_choices(portal, "subscriptions"),
    )


REPLAY_FIELDS: Final = ("subscription", "from", "to")
