"""Scripts that transform messages, run in processes of their own: adapter (behaviour 8).

`limits`, `jobs` (what is asked and answered) · `child.py` and `prelude.js` (what runs in the process) · `processes`
(one process) · `waiting` (whose turn it is) · `runner` (all of them) · `checking` (is it JavaScript at all?).
"""
