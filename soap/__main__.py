"""`python -m soap` is the command `soap`."""

import sys

from soap.cli import main

if __name__ == "__main__":
    sys.exit(main())
