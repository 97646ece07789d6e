"""For tests of code that uses rpcfut."""

from rpcfut.testing._cluster import local_cluster as local_cluster

__all__ = ["local_cluster"]
