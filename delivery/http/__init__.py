"""Requests and answers as such, over libcurl: one event loop for any number of them; knows nothing of deliveries.

`header_lines` · `answer_heads`, `retry_after` (what an answer says before its body) · `gates` (which addresses requests
go to) · `connections`, `transfers` (one request on its way) · `sockets` (what the loop watches) · `client`.
"""
