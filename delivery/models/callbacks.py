"""Where an endpoint posts its result, and to whom that goes."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from broker_project.core.encryption import CALLBACK_TOKEN, EncryptedColumn
from delivery.models.messages import Message
from subscriptions.models import EventType, Publisher


class Callback(models.Model):
    """One QUEUE group's address for a reply: given to its endpoints in place of the publisher's own (contract 6.7).

    Its token is looked up by its hash and stored encrypted, so that a repeated request bears the same address (6.10).
    """

    group_id = models.BigIntegerField(unique=True)
    """The group it was made for; that is gone once it has ended."""
    message = models.ForeignKey(Message, models.DO_NOTHING, null=True, db_constraint=False, related_name="+")
    """What was published with the original address."""
    event_type = models.ForeignKey(EventType, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    """The message's, as `publisher`: the callback may outlive it."""
    publisher = models.ForeignKey(Publisher, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    url = models.TextField(blank=True, default="", db_default="")
    """The original address; empty where that is another callback of ours: `parent`."""
    parent = models.ForeignKey("self", models.SET_NULL, null=True, db_index=False, related_name="+")
    """The callback that the reply is passed on to, inside (contract 6.9)."""
    depth = models.PositiveSmallIntegerField(default=1, db_default=1)
    """Its place in a chain of callbacks, from 1 on."""
    token_hash = models.BinaryField(max_length=32, unique=True)
    token_sealed = EncryptedColumn(purpose=CALLBACK_TOKEN, bound_to="token_hash", needed_until="expires_at")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    """Until when it may be replied to; once it has been, until when the reply is tried to be delivered."""
    reply = models.ForeignKey(
        Message, models.DO_NOTHING, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    """The endpoint's result; None until it has been posted."""
    reply_fingerprint = models.BinaryField(max_length=32, null=True)
    """What makes two replies the same."""
    replied_at = models.DateTimeField(null=True)
    delivery_id = models.BigIntegerField(null=True)
    """The reply on its way to `url`; None where it is passed on inside, or there is none yet."""

    class Meta:
        indexes = [
            models.Index(name="callback_expiry", fields=["expires_at", "-depth"]),
            models.Index(name="callback_publisher", fields=["publisher", "id"]),
            models.Index(name="callback_parent", fields=["parent"], condition=Q(parent__isnull=False)),
            models.Index(name="callback_of_reply", fields=["reply"], condition=Q(reply__isnull=False)),
        ]
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
