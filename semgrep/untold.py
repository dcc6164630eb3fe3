import logging

import structlog
from django.contrib import messages

# ok: untold-in-logs
log = structlog.get_logger(__name__)
# ok: untold-in-logs
logger = logging.getLogger(__name__)

# ruleid: untold-in-logs
log.info("delivery.rejected", body=body)
# ruleid: untold-in-logs
log.info("delivery.rejected", answer=answer.excerpt)
# ruleid: untold-in-logs
log.warning("request.refused", headers=dict(request.headers))
# ruleid: untold-in-logs
log.error("key.unknown", key=token[:8])
# ruleid: untold-in-logs
log.exception("secret.rotated", of=subscription.signing_secret)
# ruleid: untold-in-logs
log.info(f"delivery {delivery.pk} was rejected")
# ruleid: untold-in-logs
logger.warning("refused: %s", request.headers["Authorization"])
# ok: untold-in-logs
logging.getLogger("x").info("x")
# ruleid: untold-in-logs
self._log.info("message.stored", message=message.payload)
# ruleid: untold-in-logs
log.bind(password=password).info("login")

# ok: untold-in-logs
log.info("delivery.rejected", delivery=delivery.pk, status=answer.status)
# ok: untold-in-logs
log.info(EVENTS[status], line=line.pk)
# ok: untold-in-logs
log.warning("request.refused", path=request.path)
# ok: untold-in-logs
log.exception("settle.failed", lines=len(lines))
# ok: untold-in-logs
logger.warning("refused: %s", reason)
# ok: untold-in-logs
secret = generate()
# ok: untold-in-logs
bodies.append(body)
# ok: untold-in-logs
catalogue.info(body)
# ok: untold-in-logs
store(body, headers, token)
# ok: untold-in-logs
log.info("key.made", key=key.pk, prefix=key.prefix)
# ruleid: untold-in-messages
self.message_user(request, f"The key is {token}.")
# ruleid: untold-in-messages
self.message_user(request, text(key.token))
# ruleid: untold-in-messages
messages.success(request, f"New secret: {subscription.signing_secret}")
# ruleid: untold-in-messages
messages.add_message(request, messages.INFO, password)

# ok: untold-in-messages
self.message_user(request, f"{count} deliveries were released.")
# ok: untold-in-messages
messages.success(request, "The secret is shown below, once.")
# ok: untold-in-messages
messages.error(request, str(refusal))
# ok: untold-in-messages
show(request, token)
# ok: untold-in-messages
catalogue.success(token)
