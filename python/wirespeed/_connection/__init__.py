"""What every connection has, whatever waits for it: its state, what it tells of itself, messages as objects."""
