"""A panic in any layer is an exception and one connection that fails.

`scripts/panics.sh` builds what these tests need.
"""
