"""Rules of delivery: outcomes, retries, answers, callback addresses, volatile messages, replays."""
