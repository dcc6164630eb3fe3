"""`./broker bench`: the figures of the README and of docs/reference/benchmarks.md, measured on this machine.

In reading order: `command`, `figures`, `bench` (what a scenario gets), `connection`, `publisher`, `receipts`, `sink`,
`mailbox_client`, `processes`, `measure` (how a load is run), `scenarios/`; then `command_process` with `databases`
(what is measured in processes of their own), `filling`, `history` and `summaries_sql`.

A scenario is a function that takes a `Bench` and returns an `Outcome`; the first line of its docstring is its line in
`--list`. Its sizes are keyword arguments with the full size as default, so that tests run it small. It leaves nothing
in flight and gives its objects names of their own.
"""
