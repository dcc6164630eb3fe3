"""`./broker demo`: sample publishers and receivers around a real stack, and a verdict from their own logs.

In reading order: cast · events · arranging · publishers · receiver · signing · records · watching · arrivals ·
verdict · display · command.
"""
