"""The web server's side: RSGI entry, request heads, upload limits, proxies."""
