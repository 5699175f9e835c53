"""Our protocol beside other implementations: equal bytes and calls must lead to equal results."""
