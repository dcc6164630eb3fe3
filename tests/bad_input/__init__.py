"""What is refused over real HTTP, and how: tables of requests with the status and code of their answer.

`rows` says what one row is; `bodies` has what every operation refuses, whatever it does, and `fields` what every field
of every body does; `publishing`, `configuring`, `fetching` and `reading` are what each of these refuses besides.
"""
