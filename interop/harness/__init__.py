"""Support code of the tests: peers as processes, our APIs, and links between the two."""
