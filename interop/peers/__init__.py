"""Programs on other people's libraries. README.md one folder up has the contract that they follow."""
