"""Celery beat's schedules in the admin, in its theme; and the history of all changes."""

from typing import Any, ClassVar, Final

from celery.schedules import ParseException
from django import forms
from django.contrib import admin
from django.contrib.admin.models import ADDITION, CHANGE, DELETION
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from django_celery_beat import admin as beat
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule

from broker_project.accounts.models import Change
from broker_project.celery import app
from broker_project.core.admin.lists import text_filter
from broker_project.core.admin.model_admin import AutocompleteSelectFilter, ModelAdmin, column, superusers_only
from broker_project.core.admin.theme import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, link, relative
from broker_project.core.api.history import API_USER, author_and_call
from delivery.admin.read_only import ReadOnlyAdmin

admin.site.unregister([PeriodicTask, IntervalSchedule, CrontabSchedule, ClockedSchedule, SolarSchedule])


admin.site.index_title = "Dashboard"
admin.site.site_url = None  # there is no other site


TASK_FIELDS: Final = ("name", "task", "args", "kwargs", "queue", "expires", "expire_seconds")
"""Which task an entry sends, and with what: only superusers change it, for with it they can run anything."""


class TaskSelect(UnfoldAdminSelectWidget, beat.TaskSelectWidget):  # type: ignore[misc]
    """A choice among the registered tasks."""


class PeriodicTaskForm(beat.PeriodicTaskForm):  # type: ignore[misc]
    """The form of an entry."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["regtask"].widget = TaskSelect()
        self.fields["task"].widget = UnfoldAdminTextInputWidget()


class CrontabForm(forms.ModelForm):  # type: ignore[type-arg]
    """A crontab as Celery reads it."""

    class Meta:
        model = CrontabSchedule
        fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone")
        help_texts = {"day_of_week": 'Days of the week; "*" for all, Sunday is 0, Monday is 1. (Example: "0,5")'}

    def clean(self) -> dict[str, Any]:
        """Refuse schedules that beat cannot run: a day that the month does not have, or syntax of other crons."""
        fields: dict[str, Any] = super().clean() or {}
        crontab = CrontabSchedule(**fields)
        crontab.clean_fields()
        try:
            crontab.schedule  # noqa: B018 - reads them
        except (ValueError, ParseException) as why:
            raise forms.ValidationError(f"This would never run. {why}") from None
        return fields


@admin.register(PeriodicTask)
class ThemedPeriodicTaskAdmin(beat.PeriodicTaskAdmin, ModelAdmin):  # type: ignore[misc]
    """Which task is sent when. The broker's own entries can be changed and switched off, but not deleted.

    Users who are not superusers change when the broker's own tasks are sent, and whether, and nothing else.
    """

    when_empty = "No schedule yet. Celery beat adds those of the broker when it starts."
    form = PeriodicTaskForm
    actions: ClassVar[tuple[str, ...]] = ()
    """Entries are switched on and off on their pages, so that the history records it."""
    change_form_template = None
    date_hierarchy = None
    ordering = ("name",)
    list_display = ("name", "task", "enabled", "scheduler", "last_run_at", "total_run_count")
    list_filter = ("enabled", "task")
    readonly_fields = ("last_run_at", "total_run_count")
    fieldsets = (
        (None, {"fields": ("name", "regtask", "task", "enabled", "description")}),
        ("When", {"fields": ("interval", "crontab", "clocked", "start_time", "one_off", *readonly_fields)}),
        ("How", {"fields": ("args", "kwargs", "queue", "expires", "expire_seconds")}),
    )

    has_add_permission = superusers_only

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions on several rows, without deletion, which would silently skip the broker's own entries."""
        return {name: what for name, what in super().get_actions(request).items() if name != "delete_selected"}

    def get_form(self, request: HttpRequest, obj: PeriodicTask | None = None, change: bool = False, **more: Any) -> Any:
        """Return the form; only that of superusers chooses the task."""
        own = {} if request.user.is_superuser else {"form": forms.ModelForm}
        return super().get_form(request, obj, change, **{**own, **more})

    def get_fieldsets(self, request: HttpRequest, obj: PeriodicTask | None = None) -> Any:
        """Return the sections of the form."""
        hidden = set() if request.user.is_superuser else {"regtask"}
        return [
            (title, {"fields": [name for name in section["fields"] if name not in hidden]})
            for title, section in super().get_fieldsets(request, obj)
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: PeriodicTask | None = None) -> tuple[str, ...]:
        """Return what the user cannot change."""
        fields = tuple(super().get_readonly_fields(request, obj))
        return fields if request.user.is_superuser else (*fields, *TASK_FIELDS)

    def has_change_permission(self, request: HttpRequest, obj: PeriodicTask | None = None) -> bool:
        """Tell whether the user may change it; other entries than the broker's own take a superuser."""
        is_own = obj is None or obj.name in app.conf.beat_schedule
        return super().has_change_permission(request, obj) and (request.user.is_superuser or is_own)

    def has_delete_permission(self, request: HttpRequest, obj: PeriodicTask | None = None) -> bool:
        """Tell whether the user may delete it; beat would add the broker's own entries again."""
        return bool(request.user.is_superuser) and not (obj and obj.name in app.conf.beat_schedule)


@admin.register(IntervalSchedule)
class ThemedIntervalScheduleAdmin(beat.IntervalScheduleAdmin, ModelAdmin):  # type: ignore[misc]
    """Schedules with a fixed interval."""

    when_empty = "No interval yet. Add one to send a task every so often, then choose it in a schedule."


@admin.register(CrontabSchedule)
class ThemedCrontabScheduleAdmin(beat.CrontabScheduleAdmin, ModelAdmin):  # type: ignore[misc]
    """Schedules at times of the day, the week or the year."""

    when_empty = "No crontab yet. Add one to send a task at times of the day, then choose it in a schedule."
    form = CrontabForm


@admin.register(ClockedSchedule)
class ThemedClockedScheduleAdmin(beat.ClockedScheduleAdmin, ModelAdmin):  # type: ignore[misc]
    """Schedules that run once."""

    when_empty = "No time yet. Add one to send a task once, then choose it in a schedule."


class KeyFilter(text_filter("API key, by its prefix", "key")):  # type: ignore[misc]
    """Changes that were made with a key."""

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> "QuerySet[Any]":  # noqa: ARG002
        """Return the rows of the key."""
        prefix = self.value()
        of_key = {"user__username": API_USER, "change_message__startswith": prefix}
        return queryset.filter(**of_key) if prefix else queryset


VERBS: Final = {ADDITION: "added", CHANGE: "changed", DELETION: "deleted"}


def _who(change: Change) -> str:
    """Return the name of a person, or the prefix and the label of a key."""
    name = str(change.user)
    return f"key {author_and_call(change.change_message)[0]}" if name == API_USER else name


def _about(change: Change) -> object:
    """Return what was changed, as a link if it has a page and was not deleted."""
    kind = f"{capfirst(change.content_type.name)}: " if change.content_type else ""
    address = change.get_admin_url() if change.action_flag != DELETION else None
    text = f"{kind}{change.object_repr}"
    return link(address, text) if address else text


def _done(change: Change) -> str:
    """Return what was done to it."""
    if str(change.user) == API_USER:
        return author_and_call(change.change_message)[1]
    return change.get_change_message() or VERBS[change.action_flag]


@admin.register(Change)
class HistoryAdmin(ReadOnlyAdmin[Change]):
    """Who changed what: people in the admin site, and clients with API keys."""

    when_empty = "Nobody has changed anything yet. What people and API keys change appears here."
    list_display = ("when", "who", "about", "done")
    fields = ("when", "who", "about", "done")
    list_filter = (("user", AutocompleteSelectFilter), KeyFilter, "content_type", "action_flag")
    list_select_related = ("user", "content_type")
    time_column = "action_time"

    when = column("when", lambda change: relative(change.action_time))
    who = column("who", _who)
    about = column("about", _about)
    done = column("what", _done)
