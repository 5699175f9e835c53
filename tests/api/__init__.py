"""Property-based tests of the Python API with arbitrary values; ``python -m api`` runs them for longer."""
