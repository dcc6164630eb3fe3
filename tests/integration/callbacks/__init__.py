"""Callbacks: create, reply, and deliver the reply."""
