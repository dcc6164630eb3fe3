"""Second factors, one for each person, and their recovery codes; failed logins; installed roles; the history."""

from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.db import models

from broker_project.core.encryption import EncryptedValue


class SecondFactor(models.Model):
    """The seed of a person's one-time codes; it takes effect once a first code has confirmed that an app has it."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="second_factor")
    seed = EncryptedValue(purpose="second factor", bound_to="user_id")
    """In base32, as apps take it."""
    confirmed_at = models.DateTimeField(null=True)
    last_step = models.BigIntegerField(default=0)
    """The step of the last code that was accepted: neither it nor an earlier one is accepted again."""
    failures = models.PositiveIntegerField(default=0)
    """Wrong codes since the last right one."""
    locked_until = models.DateTimeField(null=True)
    """No code is checked before."""

    def __str__(self) -> str:
        return f"second factor of {self.user}"


class RecoveryCode(models.Model):
    """The digest of a code that works once; the row is deleted when it is used."""

    second_factor = models.ForeignKey(SecondFactor, on_delete=models.CASCADE, related_name="recovery_codes")
    digest = models.BinaryField(max_length=32)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["second_factor", "digest"], name="recovery_code_once"),)

    def __str__(self) -> str:
        return f"recovery code of {self.second_factor.user}"


class FailedLogin(AccessAttempt):  # type: ignore[misc]  # axes has no annotations
    """Failed logins with one name, whether or not it exists, from one address; a successful login deletes the row."""

    class Meta:
        proxy = True
        verbose_name = "failed login"

    def __str__(self) -> str:
        return f"{self.username} from {self.ip_address}"


class Change(LogEntry):
    """What a person did in the admin site, or a client with an API key."""

    class Meta:
        proxy = True
        verbose_name = "change"
        verbose_name_plural = "history"


class InstalledRole(models.Model):
    """A group that a migration has created, and that each migration gives the permissions of its role."""

    group = models.OneToOneField(Group, on_delete=models.CASCADE, primary_key=True)

    def __str__(self) -> str:
        return str(self.group)


def second_factor_of(user: User) -> SecondFactor | None:
    """Return a person's confirmed second factor; None without one."""
    factor: SecondFactor | None = getattr(user, "second_factor", None)
    return factor if factor is not None and factor.confirmed_at else None
