"""`./broker demo`: sample publishers and receivers around a real stack, and a verdict from their own logs.

In reading order: cast · events · records · arranging · sources · publishers · asking · receiver · signing · replies ·
mailbox_reader · watching · arrivals · verdict · jobs, mailboxes (the same of the QUEUE and the mailbox) · judging ·
runs · display · summarizing, summary (what the broker says itself) · command.
"""
