"""What the tests are made of: peers as processes, our ways to use a connection, and a pair of the two."""
