"""Facts to summaries, each a function from frames to a frame: no clock, no settings, no user-defined functions.

said: `facts` (what goes in, and what summaries are made of) · `shapes` (a table's columns, hours)
silver: `whose` (names for ids) · `answers` (what an attempt came to) · `silver`
gold: `counts` · `histograms` · `reliability` · `latency` · `endpoints` · `volume` · `callbacks` ·
`backlog` · `senders` · `shares` · `explanations`, `inversions`, `duplicates`, `audit`; of days: `budgets` ·
`anomalies`
all of them: `summaries`

None loses or multiplies a row for an id that is not known (any more), so that totals are those of PostgreSQL.
"""
