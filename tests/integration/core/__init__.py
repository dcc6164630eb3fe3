"""Requests that every API and every admin page refuses, logging, egress, connections."""
