"""Our protocol beside other people's: the same bytes and calls, and what becomes of them has to be the same."""
