"""What the server peers share: the load generator and its reports, and the servers' own part."""
