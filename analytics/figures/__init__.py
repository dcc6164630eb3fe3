"""What the summaries say of a range: read from PostgreSQL, added up for the charts; one module a topic.

`selecting` (what all have in common) · `coverage` · `reliability` · `latency` · `volume` · `backlog` · `queues` ·
`endpoints` · `budgets` · `anomalies` · `audit` · `callbacks` · `looked` (what one page asks more than once)
"""
