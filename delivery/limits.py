"""Limits of a worker that depend on each other: time-outs, leases, pages and ceilings, each with its reason.

Times are in seconds, sizes in bytes. Limits that a rule of the contract sets for one feature stand with that feature:
pauses in `retry`, long polls in `mailbox.long_poll`, slices of long jobs in their modules. A mailbox's acknowledgement
deadline (30 s unless configured) is a field of the subscriber; the largest batch (1,000 events) is a setting.
"""

from typing import Final

from subscriptions.endpoints import DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS

# One request
REQUEST_DEADLINE_SECONDS: Final = float(DEFAULT_TIMEOUT_SECONDS)
"""The deadline of a request whose destination has no other, from its mark to the end of its answer (contract 4.8)."""
CONNECT_TIMEOUT_MS: Final = 5_000
"""Part of the deadline: an address that does not answer leaves time for the next one."""
OVERDUE_SECONDS: Final = 0.5
"""libcurl counts from when it begins, too late in a process that was just stopped: then the client ends the request."""
STALL_SECONDS: Final = 0.1
"""A client that looks at its sockets again after more than this was kept, by a database that hangs for example."""
GATHER_SECONDS: Final = 0.003
"""The first answers wait for those to requests that left together with them: a settle for one costs nearly as much as a
settle for ten."""
SETTLE_LATER_SECONDS: Final = 0.08
"""Deliveries with nothing behind them wait for each other to be settled, for the same reason."""
SETTLE_EARLIER_SECONDS: Final = 0.04
"""So much earlier they are settled with a page that is read anyway."""
MAX_ANSWER_BYTES: Final = 65_536
"""Bytes of an answer's body that are read unless the client wants more; then the connection is closed."""
MAX_HEADER_BYTES: Final = 65_536
KEPT_HEADER_BYTES: Final = 2_048
KEPT_SCRIPTED_BYTES: Final = 8192
"""What an attempt keeps of a body that a script made; a larger one is not kept."""
KEPT_BODY_BYTES: Final = 1_024
"""Of an answer, what is recorded with the attempt (contract 10.3)."""
MAX_LOOK_UPS: Final = 500
"""Of host names at a time, each in a thread: one whose name server does not answer takes ten seconds or more."""
KEPT_CONNECTIONS: Final = 4_096
"""More than requests in flight: with fewer, most requests would need a new connection."""

# The lease of a line
LEASE_SECONDS: Final = 20.0
"""Another worker may take over a line this time after its last renewal."""
RENEWAL_SECONDS: Final = 4.0
"""Leases that are older are renewed, all in one statement, and no sooner than this after the last one: so a worker can
do without its database for ten seconds before a request has to end."""
LEASE_MARGIN_SECONDS: Final = 3.0
"""A request has to end this time before its line's lease: a worker that waits for a connection notices late."""
MAX_STEP_SECONDS: Final = 1.0
"""By so much the database's clock may jump ahead, or tell its time late, unnoticed: it is within the margin too."""
MIN_STATEMENT_SECONDS: Final = 1.0
"""The database has this time for a statement, even if a lease is about to end: it is within the margin."""

# A turn
TURN_SECONDS: Final = 30.0
"""A line stays with a worker for this time at most: then another one may take it (contract 4.14)."""
LONG_TURN_SECONDS: Final = 120.0
"""A line that sends several at a time stays longer while one of its requests hangs, so that the others do not wait for
that one. From this time on it stays only while a request is older than `DRAIN_SECONDS`, and sends nothing more to the
subscription, or of the ordering key, of such a request."""
DRAIN_SECONDS: Final = 5.0
"""At the end of a long turn the other slots of its line wait at most so long for the last answers."""
LONGEST_TURN_SECONDS: Final = LONG_TURN_SECONDS + MAX_TIMEOUT_SECONDS
"""From this time on the line sends nothing more: requests that hung before have timed out by now."""
MIN_LINK_SECONDS: Final = 0.02
"""Between two links that a worker sends for lines whose turn is over: thousands of slow lines cost little."""
IDLE_SECONDS: Final = 5.0
"""A line without work is released after this time: until then its next delivery costs no claim."""
MIN_IDLE_SECONDS: Final = 1.0
"""The same where others need the place of the line."""
LOOK_SECONDS: Final = 0.01
"""How often idle lines look for work while Redis is away."""
LOOK_SHARE: Final = 0.25
"""The largest share of the time that is spent on looking: the more lines are idle, the less often they look."""
HANGS_SECONDS: Final = 0.25
"""After this time without an answer a slot hangs, and the other slots of its line go on without it."""
HOLDS_SECONDS: Final = 2.0
"""How often a line that goes on beside what it holds looks whether somebody has ended its pause."""
STUCK_SECONDS: Final = 1.0
"""When all slots hang for this time, the line returns what it has read, so that it does not starve others."""
HANGING_SECONDS: Final = 1.0
"""When a subscription keeps half of the slots waiting for this time, what only it can take is put off."""

# Rate limits and rests
SHORT_WAIT_SECONDS: Final = 0.1
"""For a shorter wait it does not pay to read what else can be sent."""
LONG_WAIT_SECONDS: Final = 2.0
"""A slot waits this long for a rate limit: no other worker would take a released line in time."""
ASKED_SECONDS: Final = 1.0
"""Others wait this long for the answer to the first request for a rate slot."""
UNORDERED_REST_SECONDS: Final = 1.0
"""An unordered line in which everything waits for a rate limit rests no longer: other work may arrive."""
RETRY_LINE_REST_SECONDS: Final = 5.0
"""The same of a retry line, in which nothing else arrives suddenly."""
RETRY_LINE_REST_SHARE: Final = 0.01
"""The share of the pause between two tries for which a retry line rests, so that one turn sends what is due by then."""

# Pages and bodies
CAPACITY: Final = 500
"""Deliveries that a line holds, if its subscriber does not say; a QUEUE sender's page too."""
MIN_PAGE: Final = 16
KEYS_SECONDS: Final = 0.05
"""For this time after a page of a line that goes by keys, no slot without a free key reads another one."""
MAX_OF_KEY: Final = 16
"""Deliveries of one ordering key in a page: they go one after the other, so more would only keep others waiting."""
RATE_LIMITED_PAGE: Final = 2
"""A line that waited for its rate sends one delivery, and waits with the next."""
PAGE_SECONDS: Final = 1.25
"""A line reads what it will send in this time, so that little is read for nothing."""
MAX_MARKED_BYTES: Final = 8 * 1024
"""A delivery with a larger body is not marked with its page: its body is read when there is room for it."""
MAX_PAGE_DELIVERIES: Final = 500
"""Deliveries that the groups of a page have together: the event loop, with all its lines, waits for the page."""
MAX_LINE_BYTES: Final = 1024 * 1024
"""Bodies that a line without a subscriber holds; one delivery is always allowed."""
MAX_PROCESS_BYTES: Final = 47 * 1024 * 1024
"""Bodies that the lines of a process hold. With volatile messages and a backfill it holds 64 MiB (contract 11.1)."""
MAX_BACKFILL_BYTES: Final = 1024 * 1024
"""Bodies that a backfill reads at once for a filter or an ordering key; one message is always allowed."""
SMALL_BODY_BYTES: Final = 64 * 1024
SMALL_BODY_RESERVE: Final = 1 / 8
"""The share of the process's bytes that only small bodies may use, so that large ones cannot stop them all."""

# Ceilings of a process
MAX_IN_FLIGHT: Final = 4_000
"""Requests in flight: 54 KB and a file each."""
MAX_EXTRA_SLOTS: Final = 2_000
"""Slots beyond the first of each line: lines that send several at a time leave room for other lines."""

# Poison messages
MAX_CRASHES: Final = 2
"""A delivery in flight at so many lost leases in a row is sent in a process of its own (contract 4.19)."""
MAX_ISOLATED_PROCESSES: Final = 4
"""Of a worker, which send one such delivery each: 60 MB each."""
ISOLATION_WAIT_SECONDS: Final = 0.25
"""How often a delivery that waits for such a process looks whether it is ready."""
ISOLATED_GRACE_SECONDS: Final = 10
"""A process that says nothing this long after its request's time-out hangs, and is ended."""

# When the database fails, or refuses
DATABASE_RETRY_SECONDS: Final = 0.25
"""Pause before a database that failed is asked again."""
LOCKED_RETRY_SECONDS: Final = 0.02
"""Pause before a locked line is settled again: large cancellations unlock it between slices, but not for long."""
REFUSED_GROUP_SECONDS: Final = 60.0
"""A QUEUE group waits this time after the database refused its outcome, or could not read its message."""
CUT_SHORT_SECONDS: Final = 1.0
"""A QUEUE group waits this time if its next endpoint was no longer as it was read."""
EXPIRED_SECONDS: Final = 60.0
"""A reply, or a QUEUE group of which nothing else could be sent, waits this time if it has expired: it ends once the
clock is believed."""
UNADDRESSED_SECONDS: Final = 60.0
"""A QUEUE group waits this time if its callback address cannot be made: an operator has to restore a secret key."""

# Waking and sweeping
SWEEP_SECONDS: Final = 1.0
TAKEOVER_SECONDS: Final = 10.0
"""A worker runs a line of a queue that it does not consume after it was due for this time and nobody came (contract
6.2): longer than a worker takes to restart, and half of the lease that a crash costs anyway."""
AWAKE_SECONDS: Final = 5
"""A lost wake-up can suppress others for this time; the sweep does not wait for it."""
OWNED_SECONDS: Final = 300
"""Longer than a turn and its last request: for this time publishers tell a worker of new work in a line that it runs.
"""
LISTEN_SECONDS: Final = 1.0
"""How long a worker that cannot hear hints waits before it connects again."""
MAX_TASKS: Final = 256
"""Waiting tasks of a queue, after which none is added: perhaps no worker serves it at the moment."""
LINES_PER_TASK: Final = 256
"""The most lines that a worker takes at once."""
WOKEN_SHARES: Final = 8
"""A worker takes one part in so many of the woken lines, and leaves the others to the workers that are free next."""
FEWEST_LINES_PER_TASK: Final = 16
"""A worker takes this many, or all, where its part would be smaller: each task costs CPU time too."""
BREAKER_SECONDS: Final = 2.0
"""After a failure Redis is not asked for this time."""
MAX_LINES_PER_SWEEP: Final = 10_000
SWEEP_SLICE: Final = 2_000
"""Delayed or parked deliveries that one sweep brings back: a large backlog must not hold it up."""

# Counting
MAX_DUE: Final = 1_000_000
"""Largest number of due deliveries: counting as many takes about a second."""

# Start and stop of a worker process
NAME_SECONDS: Final = 2.0
"""Time in which the database notices that an earlier process of the same name is gone."""
START_SECONDS: Final = 10.0
"""A turn waits this long for the database of a worker that starts."""
STOP_SECONDS: Final = MAX_TIMEOUT_SECONDS + 4.0
"""Requests in flight may end and be settled before a worker stops, which takes no longer than they do."""
