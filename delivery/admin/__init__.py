"""The operator's view: what is on its way and what became of it, to be read and never edited.

`read_only` and `contents` (what all have in common, and who sees it), `addressees` (to whom deliveries go), `verdicts`
and `filter_lab` (why filters hold or not), `releasing`, `resubmitting`, `republishing`, `pausing`, `backfilling`,
`rehearsing`, `replayable` (what more can be done than to look), then one module a model: `callbacks`, `messages`,
`queue_groups`, `narrowing` and `deliveries`, `dead_letters`, `attempts`, `replay_form`, `selections` and `replays`,
`line_work`, `standing_columns` and `lines`, `mailbox_work`, `taking_back`, `emptying` and `mailboxes`, `announcements`,
`volatile_counts`, `housekeeping`; `configured` adds to the pages of `subscriptions`.
"""

from delivery.admin import (
    attempts,
    callbacks,
    configuration,
    dead_letters,
    deliveries,
    housekeeping,
    lines,
    mailboxes,
    messages,
    queue_groups,
    replays,
)

__all__ = [
    "attempts",
    "callbacks",
    "configuration",
    "dead_letters",
    "deliveries",
    "housekeeping",
    "lines",
    "mailboxes",
    "messages",
    "queue_groups",
    "replays",
]
