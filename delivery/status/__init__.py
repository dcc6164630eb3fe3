"""The status of lines, queues, callbacks and deliveries, and why it is so. Nothing here changes anything.

Read `line_status`, `queue_status`, `callback_status`, then `delivery_search` (finds deliveries for lists) and
`explain_message`. `timeline` tells the story of one delivery with its requests (`sent_requests`), `wait` what it waits
for, and `subscriber_status` how a subscriber is doing.
"""
