"""What `./broker` starts: the environment, embedded servers, the supervisor, checks, the demo and tools.

Read `bootstrap` (makes the environment), `__main__` and `up` (commands), `running_stack` with `application` and
`stores` (what a stack consists of), `supervisor` with `guard` (keeps it running), `folders` and `ports` (what it
remembers), then `test_command`, `model`, `trace` and `counts`, `load` and `demo`.
"""
