"""What endpoints are sent, as bytes.

`forwarded_headers` (which of the publisher's go on, whose value wins) · `signatures` · `requests` (the request of one
delivery) · `loading` (the content and the destinations that requests are made of).
"""
