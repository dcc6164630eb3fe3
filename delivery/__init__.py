"""From publisher to endpoint: messages, deliveries and lines; everything about them, the operator's view included.

In the order in which a message meets them:

taken in: `refusals`, `drafts`, `payloads`, `raw_json`, `forwarded_headers`, `documents`, `queue_groups`,
`callback_tokens` (rules) · `callback_terms` · `idempotency` · `placing`, `store_statements`, `storing` ·
`making_callbacks` · `publishing` · `accepting` · `replying` (what endpoints post to callbacks)
kept: `statuses`, `due_times`, `filing` · `models` · `storage_days` (the partitions) · `retaining`, `kept_days`,
`kept_messages`, `expiring` (what callbacks leave) · `maintaining`
woken: `wakeups` (hints in Redis) · `sweeping` (what a lost hint hides) · `running` (a worker process) · `tasks`
claimed: `claiming` (lease, epoch, mending) · `pages`, `loading`, `addressing`, `reading` · `hands`
(what is sent next) · `crowds`, `groups`, `parking`, `queue_reading` (the same of QUEUE groups)
called: `call_failures`, `call_answers`, `call_statements` · `call_loop` (in the web process), `caller` · `recording`,
`calling` (a SYNC event and its answer)
sent: `sending` (a turn) · `topic_sending`, `queue_sending` (the stories of lines) · `taking`, `steps`, `ledgers`,
`under_way`, `lines` (and their strands), `runs` · `paging`, `scripting`, `lingering`, `resting`, `rounds`, `driving`
(the loop) · `transforms` (what scripts get and make) · `header_lines`, `webhooks`, `signatures` ·
`http_client`, `connections`, `transfers`, `sockets`
decided: `answer_heads`, `outcomes`, `pauses`, `retry_after` · `judging`
settled: `settlements`, `settle_statements`, `settling` · `queue_settle_statements`, `queue_settling` · `batches`,
`outages`, `unsettled` · `releasing` (what follows when a
line is let go) · `cancelling`, `holding`
tried: `trials` (filters, on the newest messages) · `trying` (a script; nothing is sent)
looked at: `standing_statements`, `standing`, `callback_standing`, `queue_standing`, `listing`, `explaining` ·
`reasons` (what publishers are told of them)
"""
