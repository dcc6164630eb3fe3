"""The roles that are installed: groups for people who watch the broker, who operate it, and who administer it."""

from typing import Final

from django.contrib.auth.models import Group, Permission
from django.db.models import Q

OF_THE_BROKER: Final = Q(content_type__app_label__in=["analytics", "delivery", "subscriptions"])


def _named(app: str, *codenames: str) -> Q:
    return Q(content_type__app_label=app, codename__in=codenames)


VIEWED: Final = OF_THE_BROKER & Q(codename__startswith="view_") & ~Q(codename="view_payload")
OPERATED: Final = (
    VIEWED
    | _named("delivery", "view_payload", "replay", "change_delivery", "change_mailbox")
    | _named("subscriptions", "pause")
    | _named("analytics", "add_run")
)
ADMINISTERED: Final = (
    OF_THE_BROKER
    | Q(content_type__app_label="django_celery_beat")
    | _named("auth", "view_user", "add_user", "change_user", "view_group")
    | _named("accounts", "view_failedlogin")
)
ROLES: Final = {"Viewer": VIEWED, "Operator": OPERATED, "Administrator": ADMINISTERED}
"""The permissions of each role. All else takes a superuser."""


def install_roles(**_: object) -> None:
    """Create the roles after a migration; existing ones get the permissions that they have in this version."""
    for name, permissions in ROLES.items():
        role, _created = Group.objects.get_or_create(name=name)
        role.permissions.set(Permission.objects.filter(permissions))


def roles_with(app: str, codename: str) -> list[str]:
    """Return the names of the groups that have a permission."""
    groups = Group.objects.filter(permissions__content_type__app_label=app, permissions__codename=codename)
    return [*groups.order_by("pk").values_list("name", flat=True)]
