"""`python -m precision_time` is the command `precision-time`."""

from __future__ import annotations

import sys

from precision_time.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
