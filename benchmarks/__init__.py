"""What rpcfut costs, beside what users would otherwise take.

Run ``python -m benchmarks`` from the checkout root.
"""
