"""The harness of the benchmarks: reads a scenario, runs its peers against a server in turns, reports.

It knows no WebSocket: peers and servers are programs of their own, joined by the contract in METHODOLOGY.md.
"""
