"""Celery beat's schedules in the admin, in its theme."""

from typing import Any, ClassVar, Final

from celery.schedules import ParseException
from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django_celery_beat import admin as beat
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule

from broker_project.celery import app
from broker_project.core.admin.model_admin import ModelAdmin, superusers_only
from broker_project.core.admin.theme import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

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
