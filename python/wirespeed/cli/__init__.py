"""The command line ``wirespeed``: a user of the package like any other."""

from ._main import main

__all__ = ["main"]
