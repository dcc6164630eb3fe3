"""The broker as its users meet it: whole, over HTTP."""
