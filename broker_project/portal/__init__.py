"""The portal: pages on which the people of one subscriber look after its subscriptions (contract 1.10).

It is a client of the API: every page shows what operations of the API answer to the subscriber's key, and every button
calls one. Read `session` (links, cookies, headers, calls of the API), `operations` (the buttons), then `views`.
"""
