"""What endpoints are sent, as bytes.

Read `parts` (content and destination), `destination` and `content` (loading them), `transform` (scripts),
then `request`.
"""
