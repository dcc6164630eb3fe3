"""A line under way, up to the loop that drives it: what it has in hand, what it sends next, what an answer means.

in hand: `hands` · `pages` (which of the waiting come next) · `page_statements`, `reading` (a page, for all lines that
want one) · `transforms` (what scripts get of a delivery, and make of it)
under way: `runs` (what a turn waits for) · `steps` (the words between a line's story and its driver) · `under_way`
(one request) · `ledgers` (a line's row, as its driver knows it) · `holdings` (and its page) · `crowds` (who waits for
whom) · `pacing` (how fast subscriptions are sent) · `strands`
told: `consequences` (what an answer comes to) · `judging` (what is settled of it) · `taking`, `readying` (what comes
next) · `topic_sending` (the story of a subscriber's lines)
"""
