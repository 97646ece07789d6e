"""Ways to carry frames between workers."""

from rpcfut_transport.links._link import Link as Link
from rpcfut_transport.links._memory import MemoryLink as MemoryLink
from rpcfut_transport.links._memory import MemoryNetwork as MemoryNetwork
from rpcfut_transport.links._zmq import ZmqLink as ZmqLink

__all__ = ["Link", "MemoryLink", "MemoryNetwork", "ZmqLink"]
