"""What no fault may break, shown with real processes under load.

In reading order: exchanges · figures · endpoints, publishers · load · summarizing, auditing · verdicts, tables ·
breaking, killing · the cases; for those of endpoints misbehaving, tricks · measuring, for those of admins in_force,
edited, admin_site, editing, for those of queues jobs, queue_load, several, for callbacks replying, for synchronous
calls sync_calls, calling, for replays replayed, for retries refusing, apart, lanes, books, for volatile messages
volatile_load, for mailboxes hand_outs, holders, mailbox_figures, mailbox_clients, mailbox_manners, mailbox_process,
mailbox_load, mailbox_loading; and all of them at once: everything.
"""
