"""The requests that endpoints get.

Read `content` (what is delivered of a message), `destination` (where it goes), `transform` (scripts), then `request`,
which also removes secrets from answers.
"""
