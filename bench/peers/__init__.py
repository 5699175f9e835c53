"""The programs that the benchmarks compare, one folder each. Their common contract is in METHODOLOGY.md."""
