"""``python -m kvroad.cli``: the command where its script is not on the path."""

import sys

from kvroad.cli import main

sys.exit(main())
