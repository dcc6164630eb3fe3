"""Second factors: one a person, with the codes that count where the telephone is lost."""

from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.models import User
from django.db import models

from broker_project.core.encryption import EncryptedText


class SecondFactor(models.Model):
    """What makes a person's one-time codes; it counts from when a first code has shown that an app has it."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="second_factor")
    seed = EncryptedText(purpose="second factor", bound_to="user_id")
    confirmed_at = models.DateTimeField(null=True)
    last_step = models.BigIntegerField(default=0)
    """Of the last code that was taken: no other of it or before it is taken again."""
    failures = models.PositiveIntegerField(default=0)
    """Wrong codes since the last right one."""
    free_at = models.DateTimeField(null=True)
    """No code is looked at before."""

    def __str__(self) -> str:
        return f"second factor of {self.user}"


class RecoveryCode(models.Model):
    """One code that counts once: a row is deleted when it is used."""

    second_factor = models.ForeignKey(SecondFactor, on_delete=models.CASCADE, related_name="recovery_codes")
    digest = models.BinaryField(max_length=32)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["second_factor", "digest"], name="recovery_code_once"),)

    def __str__(self) -> str:
        return f"recovery code of {self.second_factor.user}"


class FailedLogin(AccessAttempt):  # type: ignore[misc]  # axes has no annotations
    """Failed logins under one name, that exists or not, from one address; none is left where it went well then."""

    class Meta:
        proxy = True
        verbose_name = "failed login"

    def __str__(self) -> str:
        return f"{self.username} from {self.ip_address}"


def second_factor_of(user: User) -> SecondFactor | None:
    """Return the one that counts; None if the person has none."""
    factor: SecondFactor | None = getattr(user, "second_factor", None)
    return factor if factor is not None and factor.confirmed_at else None
