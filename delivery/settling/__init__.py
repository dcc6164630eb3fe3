"""What came of deliveries, recorded durably; and what ends or frees them from outside their lines.

`settlements` (the values) · `outcome_statements`, `suspension_statements`, `announcement_statements`,
`mark_statements`, `pace_statements`, `line_statements`, `lines` (a round of lines, each under its epoch) · `outages`
(until when a database that failed is left alone) · `cancel_statements` (and in which order whoever waits locks),
`cancelling` · `expiring` · `pause_statements`, `pausing` · `holding` (letting go what is HELD).
"""
