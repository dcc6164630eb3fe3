"""From publisher to endpoint: messages, deliveries and lines.

Read in the order in which a message meets them: `statuses`, `outcomes`, `retry` and `limits` (rules), `models`,
`publish` (check, match, store), `dispatch` (find lines with work), `worker` (send and settle), `webhook` and `http`
(make and send a request). Other ways to an endpoint: `sync`, `mailbox`, `volatile`, `callbacks`. Sent again:
`replay`. What people and the clock do: `operations`, `pause`, `endpoint_probe`, `announcements`, `maintenance`. How
things stand: `status`, `playground`. `api`, `admin` and `tasks` are how the outside reaches all of it.
docs/architecture.md tells the way of one delivery, with a state diagram.
"""
