"""Releasing HELD deliveries in the admin: one from its page, many from the list."""

from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from broker_project.core.admin.read_only import ReadOnlyAdmin
from broker_project.core.admin.theme import ActionVariant, action, after_dialog, dialog
from delivery.holding import release
from delivery.models import Delivery
from delivery.statuses import DeliveryStatus

RELEASING: Final = "It is sent in its place among what waits, whatever its filter says; a script runs again."
RELEASED_AT_ONCE: Final = 500
"""A form has at most 1,000 fields."""


class ReleasingAdmin(ReadOnlyAdmin[Delivery]):
    """Deliveries, of which those that are HELD can be released."""

    actions = ("release_chosen",)
    actions_detail: ClassVar[tuple[str, ...]] = ("release",)

    def has_release_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may change deliveries, which is only ever to release them."""
        return request.user.has_perm("delivery.change_delivery")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer releasing only of what is HELD."""
        offered: list[Any] = super().get_actions_detail(request, object_id)
        if Delivery.objects.filter(pk=object_id, status=DeliveryStatus.HELD).exists():
            return offered
        return [one for one in offered if one.path != "release"]

    @action(
        description="Release",
        permissions=["release"],
        icon="play_arrow",
        variant=ActionVariant.SUCCESS,
        dialog=dialog("Release?", RELEASING, "Release"),
    )
    def release(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Release one."""
        self._release(request, Delivery.objects.filter(pk=object_id))
        return after_dialog(request, reverse("admin:delivery_delivery_change", args=[object_id]))

    @admin.action(description="Release", permissions=["release"])
    def release_chosen(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> HttpResponse | None:
        """Ask, then release those of the chosen that are HELD."""
        held = chosen.filter(status=DeliveryStatus.HELD).order_by("pk")[:RELEASED_AT_ONCE]
        if "confirmed" in request.POST:
            self._release(request, held)
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": f"{_question(len(held))} {RELEASING}",
            "chosen": held,
            "action": request.POST["action"],
            "checkbox": ACTION_CHECKBOX_NAME,
            "opts": self.opts,
        }
        return TemplateResponse(request, "subscriptions/confirm.html", context)

    def _release(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> None:
        released = release([one.pk for one in chosen])
        for delivery in Delivery.objects.open().filter(pk__in=released):
            self.log_change(request, delivery, "Released.")
        level = messages.SUCCESS if released else messages.WARNING
        self.message_user(request, f"Released {_deliveries(len(released))}.", level)


def _question(number: int) -> str:
    return "Release this HELD delivery?" if number == 1 else f"Release these {number} HELD deliveries?"


def _deliveries(number: int) -> str:
    return "1 delivery" if number == 1 else f"{number} deliveries"
