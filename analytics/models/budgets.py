"""What may fail and what did."""

from django.db import models


class ErrorBudget(models.Model):
    """One subscriber's error budget on one day, and of the 28 days up to it."""

    day = models.DateField()
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    eligible = models.BigIntegerField()
    bad = models.BigIntegerField()
    objective = models.FloatField()
    eligible_28 = models.BigIntegerField()
    bad_28 = models.BigIntegerField()
    spent = models.FloatField()

    class Meta:
        db_table = "analytics_budgets"
        verbose_name_plural = "error budgets"
        indexes = [
            models.Index(name="budgets_day", fields=["day"]),
            models.Index(name="budgets_subscriber", fields=["subscriber_id", "day"]),
        ]

    def __str__(self) -> str:
        return f"{self.day:%Y-%m-%d} {self.subscriber}"
