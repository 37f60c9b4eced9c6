"""Benchmarks: each prints a table with the machine, medians and ratios of one run."""

import os

# They start programs while gRPC's threads run: see tests/conftest.py.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
