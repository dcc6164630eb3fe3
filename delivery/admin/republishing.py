"""Resubmitting a message that nobody got in the admin: published again, to whoever qualifies now (behaviour 5.8)."""

from typing import Any, ClassVar, Final

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from broker_project.core.admin.theme import action, after_dialog, dialog
from delivery.admin.filter_lab import FilterLabAdmin
from delivery.callbacks.terms import callback_terms
from delivery.models import Message
from delivery.publish.errors import Refusal
from delivery.replay.republishing import nobody_got, republish
from delivery.replay.resubmit import NotResubmittable

AGAIN: Final = "As a message of its own, a copy of this one, to whoever qualifies now; this one stays as it is."


class RepublishingAdmin(FilterLabAdmin):
    """Messages, of which those that nobody got can be published again."""

    actions_detail: ClassVar[tuple[str, ...]] = (*FilterLabAdmin.actions_detail, "resubmit")

    def has_resubmit_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send things again."""
        return request.user.has_perm("delivery.replay")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer it only of what went to nobody."""
        offered: list[Any] = super().get_actions_detail(request, object_id)
        message = Message.objects.defer("body").filter(pk=object_id).first()
        return offered if message and nobody_got(message) else [one for one in offered if one.path != "resubmit"]

    @action(
        description="Resubmit",
        permissions=["resubmit"],
        icon="replay",
        dialog=dialog("Publish it again?", AGAIN, "Publish"),
    )
    def resubmit(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Publish it again, and lead to the copy."""
        try:
            accepted = republish(
                int(object_id),
                key_hours=settings.IDEMPOTENCY_KEY_HOURS,
                senders=settings.QUEUE_SENDERS,
                callbacks=callback_terms(),
            )
        except (NotResubmittable, Refusal) as refused:
            self.message_user(request, str(refused), messages.WARNING)
            return after_dialog(request, reverse("admin:delivery_message_change", args=[object_id]))
        self.log_change(request, Message.objects.only("pk").get(pk=object_id), f"Resubmitted as {accepted.id}.")
        self.message_user(request, f"This message is a copy of {object_id}.", messages.SUCCESS)
        return after_dialog(request, reverse("admin:delivery_message_change", args=[accepted.id]))
