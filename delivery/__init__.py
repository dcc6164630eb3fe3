"""From publisher to endpoint: messages, deliveries and lines; everything about them, the operator's view included.

The rooms, in the order in which a message meets them; each lists its modules:

taken in: `intake` (what is wrong with it) · `callbacks` (who may reply, and the replies) · `messages` (published and
stored)
kept: `models` · `retention` (for how long)
sent: `waking` (lines with work are found and claimed) · `driving` (the loop, and the worker round it) · `lines` (one of
them under way) · `queues` (the same of QUEUE groups) · `webhooks` (the request) · `http` (on its way)
settled: `settling` (what came of it; cancelled, released)
answered: `calls` (SYNC, in the web process)
fetched: `mailboxes` (by those who cannot receive calls)
apart from lines: `volatile` (never stored) · `probing` (does it work again?) · `announcements` (events of the broker's
own) · `again` (what was, once more)
looked at: `looking` (how things stand, and why; filters and scripts tried)

`rules` is what all of them go by. Data flows one way: pyproject.toml says which room may know which. `api`, `admin` and
`tasks` are how the outside reaches them.
"""
