"""Set up a webhook: one form for event type, subscriber and subscription; and the programs for its receiver."""

import re
import shlex
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from django import forms
from django.conf import settings
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from broker_project.core.admin import theme
from broker_project.core.admin.model_admin import references_checked
from subscriptions import edit
from subscriptions.admin.show_once import ShowingOnceAdmin
from subscriptions.admin.subscriptions import SubscriptionForm
from subscriptions.endpoints import Endpoint
from subscriptions.models import EventKind, EventType, Subscriber, Subscription

MAX_SUGGESTED: Final = 200
"""Names that a field suggests; any other that exists can be typed."""
NEEDED: Final = ("subscriptions.add_subscription", "subscriptions.view_eventtype", "subscriptions.view_subscriber")
"""The permissions that it takes to open the form, which shows what exists."""
RECEIVER_PORT: Final = 9000
"""Where a receiver listens if its endpoint names no port."""
PROGRAMS: Final = {"python": ("Python", "receiver.py", "python3"), "js": ("Node.js", "receiver.js", "node")}
"""The receivers of the documentation by their language: its name, the file to save one in, and what runs that."""


class SetUpForm(SubscriptionForm):
    """A subscription; its event type and subscriber are created if none has the name that is given."""

    event_type = forms.CharField(
        widget=theme.UnfoldAdminTextInputWidget({"list": "event_types", "autofocus": True, "autocomplete": "off"}),
        help_text="An existing event type, or the name of a new one, such as Shop.Order.Placed.",
    )
    kind = forms.ChoiceField(
        choices=[("", "TOPIC, or what the event type is"), *EventKind.choices],
        required=False,
        widget=theme.UnfoldAdminSelectWidget,
        help_text="TOPIC: every subscriber gets each event, in order. QUEUE: one of several endpoints gets it. "
        "SYNC: the endpoint's answer goes to the publisher.",
    )
    subscriber = forms.CharField(
        widget=theme.UnfoldAdminTextInputWidget({"list": "subscribers", "autocomplete": "off"}),
        help_text="An existing subscriber, or the name of a new one, such as warehouse.",
    )

    class Meta:
        model = Subscription
        fields = ("endpoint", "filter")
        widgets = {
            "endpoint": theme.UnfoldAdminTextInputWidget,
            "filter": theme.UnfoldAdminTextareaWidget({**theme.CODE, "rows": 2}),
        }
        help_texts = {"endpoint": "The receiver's URL. For another method than POST: PATCH:https://host/path."}

    field_order = ("event_type", "kind", "subscriber", "endpoint", "filter")

    def __init__(self, *args: Any, request: HttpRequest, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["endpoint"].required = True
        self._request = request

    @property
    def records(self) -> list[EventType | Subscriber | Subscription]:
        """What the form creates, each after those that it refers to."""
        subscription = self.instance
        named = (subscription.event_type, subscription.subscriber)
        return [*(one for one in named if one.pk is None), subscription]

    def clean(self) -> dict[str, Any]:
        """Choose the event type and the subscriber, or prepare new ones."""
        values = super().clean() or {}
        kind = values.get("kind")
        self._choose("event_type", EventType, kind=kind or EventKind.TOPIC)
        self._choose("subscriber", Subscriber)
        event_type = self.instance.event_type
        if kind and event_type and event_type.kind != kind:
            self.add_error("kind", f"{event_type} exists, and its kind is {event_type.kind}.")
        return values

    def _choose(self, field: str, model: type[EventType | Subscriber], **fields: str) -> None:
        name = self.cleaned_data.get(field)
        if name is None:
            return
        record = model.objects.filter(name=name).first() or model(name=name, **fields)
        title, permission = model._meta.verbose_name, f"subscriptions.add_{model._meta.model_name}"  # noqa: SLF001 - documented
        if record.pk is None and not self._request.user.has_perm(permission):
            self.add_error(field, f"There is no {title} of this name, and you do not have the permission {permission}.")
        elif record.pk is None:
            try:
                record.full_clean()
            except ValidationError as refused:
                self.add_error(field, refused.messages)
        setattr(self.instance, field, record)


def set_up_page(admin: ShowingOnceAdmin[Subscription], request: HttpRequest) -> HttpResponse:
    """Return the form; once it is filled in, create everything or nothing, and show the signing secret."""
    if not request.user.has_perms(NEEDED):
        raise PermissionDenied
    if admin.was_sent_before(request):
        return HttpResponseRedirect(admin.list_url())
    form = SetUpForm(request.POST or None, request=request)
    try:
        with references_checked(), transaction.atomic():
            if form.is_valid():
                for record in form.records:
                    admin.log_addition(request, edit.create(record), [{"added": {}}])
                return admin.shown(request, form.instance, form.instance.signing_secret)
    except admin.conflicts as refused:
        form.add_error(None, ValidationError(f"A change was made meanwhile; send the form again. {refused}"))
    suggested = {
        "event_types": EventType.objects.order_by("name").values_list("name", flat=True)[:MAX_SUGGESTED],
        "subscribers": Subscriber.objects.order_by("name").values_list("name", flat=True)[:MAX_SUGGESTED],
    }
    return admin.page(request, "subscriptions/set_up.html", "Set up a webhook", form=form, suggested=suggested)


def receiver_programs(endpoint: Endpoint, secret: str) -> dict[str, str]:
    """Return what to paste into a terminal, by its title: receivers at the endpoint's port, and a signed request."""
    port = urlsplit(endpoint.url).port or RECEIVER_PORT
    given = f"SECRET={shlex.quote(secret)}"
    documented = documented_programs()
    receivers = {
        title: f"cat > {file} <<'END'\n{documented[language]}END\n{given} PORT={port} {runs} {file}\n"
        for language, (title, file, runs) in PROGRAMS.items()
    }
    request = f"{given}\nENDPOINT={shlex.quote(endpoint.url)}\nMETHOD={endpoint.method}\n{documented['sh']}"
    return {**receivers, "curl": request}


@cache
def documented_programs() -> dict[str, str]:
    """Return the programs of the documentation that receive or send a signed request, by language."""
    page = (settings.BASE_DIR / "docs" / "how-to" / "verify-signatures.md").read_text()
    section = page.partition("## Verify a request")[2].partition("\n## ")[0]
    return dict(re.findall(r"```(python|js|sh)\n(.+?)```", section, re.DOTALL))
