"""The entry point for `python -m analytics.pipeline JOB.json` and for `spark-submit`."""

import sys

from analytics.pipeline.application import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
