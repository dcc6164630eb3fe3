"""Activating and inactivating in the admin: from a record's page and for many from the list."""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from broker_project.core.admin.theme import STATUS_COLOURS, ActionVariant, action, after_dialog, dialog, display
from subscriptions import edit
from subscriptions.admin.configured import Record
from subscriptions.admin.headed import HeadedAdmin
from subscriptions.models import Status

ACTIVATING = "New messages will qualify again, and what is pending is sent, in order."
INACTIVATING = "What is pending is kept and skipped; messages published meanwhile never reach it."


class SwitchedAdmin(HeadedAdmin[Record]):
    """A model with a status that only people change (contract 1.6, 1.7)."""

    actions: ClassVar[tuple[str, ...]] = ("activate_chosen", "inactivate_chosen")
    actions_detail: ClassVar[tuple[str, ...]] = ("activate", "inactivate")

    @display(description="status", ordering="status", label=STATUS_COLOURS)
    def status_label(self, record: Record) -> str:
        """Return the status, coloured."""
        return record.status  # type: ignore[attr-defined, no-any-return]

    def get_readonly_fields(self, request: HttpRequest, obj: Record | None = None) -> tuple[str, ...]:
        """Return the status too: it has actions of its own."""
        return (*super().get_readonly_fields(request, obj), "status") if obj else ()

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer only the switch that changes something."""
        offered = super().get_actions_detail(request, object_id)
        active = self.only(object_id).filter(status=Status.ACTIVE).exists()
        useless = self.get_unfold_action("activate" if active else "inactivate").action_name
        return [one for one in offered if one.action_name != useless]

    @action(
        description="Activate",
        permissions=["change"],
        icon="play_arrow",
        variant=ActionVariant.SUCCESS,
        dialog=dialog("Activate?", ACTIVATING, "Activate"),
    )
    def activate(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Activate one."""
        return self._switch_one(request, object_id, Status.ACTIVE)

    @action(
        description="Inactivate",
        permissions=["change"],
        icon="pause",
        variant=ActionVariant.WARNING,
        dialog=dialog("Inactivate?", INACTIVATING, "Inactivate"),
    )
    def inactivate(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Inactivate one."""
        return self._switch_one(request, object_id, Status.INACTIVE)

    @admin.action(description="Activate", permissions=["change"])
    def activate_chosen(self, request: HttpRequest, chosen: QuerySet[Record]) -> HttpResponse | None:
        """Activate many."""
        question = f"Activate these? {ACTIVATING}"
        return self.each_confirmed(request, chosen, question, lambda one: self._switch(one.pk, Status.ACTIVE))

    @admin.action(description="Inactivate", permissions=["change"])
    def inactivate_chosen(self, request: HttpRequest, chosen: QuerySet[Record]) -> HttpResponse | None:
        """Inactivate many."""
        question = f"Inactivate these? {INACTIVATING}"
        return self.each_confirmed(request, chosen, question, lambda one: self._switch(one.pk, Status.INACTIVE))

    def _switch_one(self, request: HttpRequest, object_id: str, status: Status) -> HttpResponse:
        note = self._switch(object_id, status)
        self.log_change(request, self.only(object_id).get(), note)
        self.message_user(request, note, messages.SUCCESS)
        return after_dialog(request, self.page_of(object_id))

    def _switch(self, pk: object, status: Status) -> str:
        edit.change(self.only(pk), changes={"status": status})
        return f"Is {status} now."
