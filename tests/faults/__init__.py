"""What no fault may break, shown with real processes under load; `tests.support.faults` has the load and the judge."""
