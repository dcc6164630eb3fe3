"""`./broker demo`: sample publishers and receivers around a real stack, and a verdict from their own records.

In reading order: `events` (subscribers and sample events), `cast` (publishers, endpoints, mailbox readers),
`mailbox_reader`, `verdict`, `demo` (the command, and what the broker's summaries say).
"""
