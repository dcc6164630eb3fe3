"""The figures of README.md, measured again with one command: `./broker bench`.

In reading order: figures · scenarios · command · bench · wire · connection · sink · receipts · publisher · children ·
processes · arranging · bare · throughput · topic (one module a scenario) · soak · growth.

A scenario is a function that takes a `bench.Bench` (a running stack, how long to measure, how to tell what it does),
and returns a `figures.Outcome`: its figures, and what went wrong (something lost or repeated, a run without value).
`scenarios.SCENARIOS` names it. Sizes are keyword arguments with the full size as default, so that the tests run the
same scenario small.

    def run(bench: Bench, *, rows: int = 2_000_000) -> Outcome:
        before = measured(bench)
        return Outcome([Figure("growth", "page read", before, "ms", target=at_most(5.0))])

`bench.stack.environment` has DATABASE_URL and REDIS_URL; `bench.api` creates what is configured, and publishes;
`children.sink()` and `children.publishing()` are processes of their own; `processes.usage()` reads CPU and memory of
each service. A scenario leaves nothing under way, and gives its event types names of its own (`arranging`).
"""
