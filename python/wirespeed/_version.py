"""The version of the package, and the default values of the User-Agent and Server headers."""

from __future__ import annotations

import sys

from ._native import __version__

__all__ = ["SERVER", "USER_AGENT", "__version__"]

USER_AGENT = f"Python/{sys.version_info.major}.{sys.version_info.minor} wirespeed/{__version__}"
"""Default value of the User-Agent header."""

SERVER = USER_AGENT
"""Default value of the Server header."""
