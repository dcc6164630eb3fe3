"""Scripts that transform messages, run in processes of their own: adapter (behaviour 8).

`limits`, `jobs`, `frames` (what is asked and answered) · `child`, `confining`, `interpreter`, `promises`, `prelude.js`
(what runs in a process) · `processes` (one process) · `waiting` (whose turn it is) · `seats`, `runner` (all of them) ·
`once` (one, for who waits for it) · `checking` (is it JavaScript?).
"""
