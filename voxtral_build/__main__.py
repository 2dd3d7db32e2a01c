"""`python -m voxtral_build`: the same as `voxtral-build`."""

from __future__ import annotations

import sys

from voxtral_build.cli import main

if __name__ == "__main__":
    sys.exit(main())
