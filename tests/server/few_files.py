"""The server on a system that allows few open files: ``python -m``."""

from __future__ import annotations

import resource
import sys

from mlxgen.server.__main__ import main

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
    sys.exit(main())
