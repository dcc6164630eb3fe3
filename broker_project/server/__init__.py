"""The web server's side of a request, before Django sees it.

Read `rsgi` (the entry), `request_head` and `browser_headers` (what is refused, what answers tell browsers), `uploads`
(how much of which bodies is held), `wsgi_environ` (header names, proxies), then `runtime` (garbage collection, files).
"""
