"""Requests and answers over libcurl: one event loop for any number of them; knows nothing of deliveries."""
