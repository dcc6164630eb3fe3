"""What endpoints are sent, as bytes.

`forwarded_headers` (which of the publisher's go on, whose value wins) · `signatures` · `parts` (the values that a
request is made of) · `cloud_events` (the form that they may have) · `requests` (the request of one delivery) ·
`content_statements`, `contents`, `destinations`, `policies`, `loading` (where the parts come from: what is delivered,
what is done where it is not taken, and where it goes).
"""
