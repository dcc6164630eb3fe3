"""The figures of README.md, measured again with one command: `./broker bench`.

In reading order: figures · scenarios · command · bench · wire · connection · answers · sink · receipts · publisher ·
bare · spawning · children · processes · arranging · moments · throughput · comparing · timing · topic (one module a
scenario, and apart) · jobs · queue (likewise) · errands · fetcher · mailbox (likewise, and filling) · asker · sync ·
sampling · soak · databases · obeying · growing · growth · subscribing · matching · history (package) · summaries_sql ·
remembering · summaries.

A scenario is a function that takes a `bench.Bench` (a running stack, how long to measure, how to tell what it does)
and returns a `figures.Outcome`: its figures, and what the broker did wrong. `scenarios.SCENARIOS` names it. Sizes are
keyword arguments with the full size as default, so that the tests run the same scenario small.

    def run(bench: Bench, *, rows: int = 2_000_000) -> Outcome:
        milliseconds = measured(bench, rows)
        return Outcome([Figure("growth", "page read", milliseconds, "ms", target=at_most(5.0))])

`bench.stack.environment` has DATABASE_URL and REDIS_URL, and `bench.ask` asks the database; `bench.api` creates what
is configured; `children.running_sink()` and `children.publishing()` are processes of their own; `processes.usage()`
reads CPU and memory of each service. A scenario leaves nothing under way, and gives its objects names of its own.
"""
