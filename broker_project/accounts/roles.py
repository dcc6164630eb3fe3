"""The roles that are installed: groups for people who watch the broker, who operate it, and who administer it."""

from typing import Final

import structlog
from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.db.models import Q

from broker_project.accounts.models import InstalledRole

log = structlog.get_logger(__name__)

OF_THE_BROKER: Final = Q(content_type__app_label__in=["analytics", "delivery", "subscriptions"])


def _named(app: str, *codenames: str) -> Q:
    return Q(content_type__app_label=app, codename__in=codenames)


VIEWED: Final = OF_THE_BROKER & Q(codename__startswith="view_") & ~Q(codename="view_payload")
OPERATED: Final = (
    VIEWED
    | _named("delivery", "view_payload", "replay", "change_delivery", "change_mailbox")
    | _named("subscriptions", "pause")
    | _named("analytics", "add_run")
    | _named("accounts", "view_change")
)
ADMINISTERED: Final = (
    OF_THE_BROKER
    | Q(content_type__app_label="django_celery_beat")
    | _named("auth", "view_user", "add_user", "change_user", "view_group")
    | _named("accounts", "view_change", "view_failedlogin")
)
ROLES: Final = {"Viewer": VIEWED, "Operator": OPERATED, "Administrator": ADMINISTERED}
"""The permissions of each role. All else takes a superuser."""


@transaction.atomic
def install_roles(**_: object) -> None:
    """Create the roles after a migration; those that a migration created get their permissions of this version.

    A group that people have made is left alone, even if it has the name of a role: its members keep their permissions.
    All of it is one transaction, or a group whose migration was killed here would be taken for one of people.
    """
    for name, permissions in ROLES.items():
        group, is_new = Group.objects.get_or_create(name=name)
        if is_new:
            InstalledRole.objects.create(group=group)
        if is_new or InstalledRole.objects.filter(group=group).exists():
            group.permissions.set(Permission.objects.filter(permissions))
        else:
            log.warning("role.not_installed", group=name, reason="There is another group with this name. Rename it.")
