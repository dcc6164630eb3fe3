"""Traps of our own that no checker off the shelf knows: rules over the syntax trees of everything that ships.

`sources` (a module, and what its names stand for) · `rule` (what one is) · `reaching_out`, `clocks`, `statements`,
`secrecy`, `silence` (the rules) · `examples/` (of each rule, what it finds and what it leaves alone).
"""
