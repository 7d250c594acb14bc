"""`python -m stackattn` is the `stackattn` command."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
