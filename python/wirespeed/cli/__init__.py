"""The command line ``wirespeed``. It uses the public API only."""

from ._main import main

__all__ = ["main"]
