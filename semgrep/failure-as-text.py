import structlog

log = structlog.get_logger(__name__)

try:
    store()
except Error as failure:
    # ruleid: failure-as-text
    log.warning("store.failed", reason=str(failure))
    # ruleid: failure-as-text
    log.warning("store.failed", reason=repr(failure))
    # ruleid: failure-as-text
    self._log.warning("store.failed", reason=f"because: {failure}")
    # ruleid: failure-as-text
    log.warning("store.failed", reason=str(failure).partition("\n")[0])

    # ok: failure-as-text
    log.warning("store.failed", reason=failure)
    # ok: failure-as-text
    log.warning("store.failed", day=str(day))
    # ok: failure-as-text
    raise Unreadable(str(failure))

try:
    store()
except Refused:
    return
except (Away, Error) as failure:
    # ruleid: failure-as-text
    logging.getLogger("store").error("store.failed: %s", str(failure))
else:
    log.info("store.done")
finally:
    close()
