"""What the server peers share: the program that puts load on a server and tells of it, and the servers' own part."""
