"""``python -m lance_stream.cli`` is ``lance-stream``."""

from __future__ import annotations

import sys

from lance_stream.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
