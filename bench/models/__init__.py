"""What the Python peers do: the loops of the workloads, the same around every library, and the program around them."""
