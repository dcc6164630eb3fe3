"""What there is and why, for who looks; and what would be, for who tries. Nothing here changes anything.

`standing_statements`, `standing` (of lines), `callback_standing`, `queue_standing` · `under_way`, `listing` (the newest
of a kind) · `handed_out` (what clients have fetched) · `dead_letters` (what came to nothing) · `explaining` (why a
subscription gets a message or not) · `trials` (filters, on the newest messages) · `trying` (a script; nothing is sent).
"""
