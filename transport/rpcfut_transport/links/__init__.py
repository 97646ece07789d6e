"""Ways to carry frames between workers."""

from rpcfut_transport.links._faults import FaultKind as FaultKind
from rpcfut_transport.links._faults import FaultPlan as FaultPlan
from rpcfut_transport.links._faults import FaultRule as FaultRule
from rpcfut_transport.links._inbox_folder import (
    find_control_sockets as find_control_sockets,
)
from rpcfut_transport.links._link import Link as Link
from rpcfut_transport.links._link import OnWay as OnWay
from rpcfut_transport.links._link import WayEvent as WayEvent
from rpcfut_transport.links._memory import MemoryLink as MemoryLink
from rpcfut_transport.links._memory import MemoryNetwork as MemoryNetwork
from rpcfut_transport.links._options import LinkOptions as LinkOptions
from rpcfut_transport.links._options import NetworkOptions as NetworkOptions
from rpcfut_transport.links._zmq import ZmqLink as ZmqLink

__all__ = [
    "FaultKind",
    "FaultPlan",
    "FaultRule",
    "Link",
    "LinkOptions",
    "MemoryLink",
    "MemoryNetwork",
    "NetworkOptions",
    "OnWay",
    "WayEvent",
    "ZmqLink",
    "find_control_sockets",
]
