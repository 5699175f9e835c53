"""Property-based tests of the Python API with arbitrary values; ``python -m campaigns.api`` runs them for longer."""
