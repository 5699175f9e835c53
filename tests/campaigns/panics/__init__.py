"""A panic in any layer is an exception and one failed connection.

`scripts/panics.sh` builds the module that these tests need.
"""
