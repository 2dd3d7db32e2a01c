"""How the demo's commands start and fail."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from voxtral_build.errors import BuildError


def run(main: Callable[[], None]) -> None:
    """Run a command; progress goes to stderr, and a mistake ends it with a message."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        main()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
