"""Run the command `soap` by `python -m soap`."""

import sys

from soap.cli import main

if __name__ == "__main__":
    sys.exit(main())
