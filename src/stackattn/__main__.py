"""Run the `stackattn` command with `python -m stackattn`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
