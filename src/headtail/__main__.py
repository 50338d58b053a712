"""`python -m headtail`."""

import sys

from headtail.cli import main

sys.exit(main())
