"""Scripts that transform messages, run in child processes (contract 8).

Read `runner` (jobs in, whose runs next, results out), `process` (one child process), then what runs in the child:
`interpreter` (JavaScript and its limits) and `seccomp` (the system calls it may make). Both sides share `jobs`.
"""
