import datetime as dt
import time
from datetime import UTC, date, datetime
from time import time as clock

from django.db.models.functions import Now
from django.utils import timezone

# ruleid: wall-clock
lease_until = time.time() + LEASE
# ruleid: wall-clock
lease_until = clock() + LEASE
# ruleid: wall-clock
due_at = datetime.now(UTC) + pause
# ruleid: wall-clock
due_at = dt.datetime.now(dt.UTC) + pause
# ruleid: wall-clock
due_at = timezone.now()
# ruleid: wall-clock
due_at = models.DateTimeField(default=timezone.now)
# ruleid: wall-clock
today = date.today()
# ruleid: statement-clock
lines.filter(lease_until__lt=Now())

# ok: wall-clock
until = time.monotonic() + PATIENCE
# ok: wall-clock
cpu = time.process_time()
# ok: statement-clock
cursor.execute("UPDATE delivery_line SET lease_until = clock_timestamp() + %s", [LEASE])
# ok: wall-clock
published_at = now
# ok: wall-clock
moment = datetime.fromisoformat(text)
