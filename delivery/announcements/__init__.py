"""Events of the broker's own: that a delivery ended unsuccessfully, that a line pauses or goes on (behaviour 5.7).

`occasions` (what they say) · `announcing` (from what was recorded with its cause to a message like any other).
"""
