"""Where an endpoint posts its result, and to whom that goes."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from delivery.models.messages import Message


class Callback(models.Model):
    """One QUEUE group's address for a reply: given to its endpoints in place of the publisher's own (behaviour 6.7).

    Its token is looked up by its hash and kept encrypted, so that a repeated request bears the same address (6.10).
    """

    group_id = models.BigIntegerField(unique=True)
    """The group it was made for; that is gone once it has ended."""
    message = models.ForeignKey(Message, models.DO_NOTHING, null=True, db_constraint=False, related_name="+")
    """What was published with the original address."""
    url = models.TextField(blank=True, default="", db_default="")
    """The original address; empty where that is another callback of ours: `parent`."""
    parent = models.ForeignKey("self", models.SET_NULL, null=True, related_name="+")
    """The callback that the reply is passed on to, inside (behaviour 6.9)."""
    depth = models.PositiveSmallIntegerField(default=1, db_default=1)
    """Its place in a chain of callbacks, from 1 on."""
    token_hash = models.BinaryField(max_length=32, unique=True)
    token_encrypted = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(db_index=True)
    reply = models.ForeignKey(Message, models.DO_NOTHING, null=True, db_constraint=False, related_name="+")
    """The endpoint's result; None until it has been posted."""
    reply_fingerprint = models.BinaryField(max_length=32, null=True)
    """What makes two replies the same."""
    replied_at = models.DateTimeField(null=True)
    delivery_id = models.BigIntegerField(null=True)
    """The reply on its way to `url`; None where it is passed on inside, or there is none yet."""

    class Meta:
        constraints = [
            models.CheckConstraint(name="callback_target", condition=Q(url="") | Q(parent=None)),
            models.CheckConstraint(
                name="callback_reply",
                condition=Q(reply=None, replied_at=None, reply_fingerprint=None)
                | Q(reply__isnull=False, replied_at__isnull=False, reply_fingerprint__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"callback {self.pk}"
