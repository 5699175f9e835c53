"""The Python API, given what no caller should give: by hypothesis; ``python -m api`` goes on for long."""
