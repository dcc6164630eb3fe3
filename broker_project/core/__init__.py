"""Plumbing that knows no domain.

Database access, encryption, egress policy, rate limits, and the base of API and admin.
"""
