import contextlib
from contextlib import suppress

try:
    settle(line)
# ruleid: swallowed
except Exception:
    pass
try:
    settle(line)
# ruleid: swallowed
except:
    return None
try:
    settle(line)
# ruleid: swallowed
except (ValueError, BaseException):
    continue
try:
    settle(line)
# ruleid: swallowed
except Exception as failure:  # noqa: BLE001
    # It will be tried again.
    pass
else:
    log.info("line.settled", line=line.pk)
finally:
    release(line)
# ruleid: swallowed
with contextlib.suppress(Exception):
    settle(line)
# ruleid: swallowed
with suppress(OSError, Exception):
    settle(line)

# ok: swallowed
try:
    settle(line)
except Exception:
    log.exception("settle.failed", line=line.pk)
# ok: swallowed
try:
    settle(line)
except ValueError:
    pass
# ok: swallowed
try:
    settle(line)
except Exception as failure:
    raise Refused from failure
# ok: swallowed
with contextlib.suppress(ProcessLookupError):
    os.kill(pid, signal.SIGKILL)
