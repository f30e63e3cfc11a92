"""The brokers of other projects that the benchmarks run beside ours."""
