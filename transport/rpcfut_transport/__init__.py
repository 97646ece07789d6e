"""Messages between workers: bytes, peers, links. Knows no tensors."""

from rpcfut_transport._buffers import KEEP_ALIVE_MIN_NBYTES as KEEP_ALIVE_MIN_NBYTES
from rpcfut_transport._buffers import Buffer as Buffer
from rpcfut_transport._calls import CallNote as CallNote
from rpcfut_transport._calls import CallView as CallView
from rpcfut_transport._calls import Counters as Counters
from rpcfut_transport._calls import Handler as Handler
from rpcfut_transport._calls import IncomingCall as IncomingCall
from rpcfut_transport._calls import PeerView as PeerView
from rpcfut_transport._calls import ReplySink as ReplySink
from rpcfut_transport._calls import Work as Work
from rpcfut_transport._clock import Clock as Clock
from rpcfut_transport._clock import ManualClock as ManualClock
from rpcfut_transport._clock import MonotonicClock as MonotonicClock
from rpcfut_transport._crew import Crew as Crew
from rpcfut_transport._endpoint import Endpoint as Endpoint
from rpcfut_transport._errors import AuthenticationError as AuthenticationError
from rpcfut_transport._errors import ClosedError as ClosedError
from rpcfut_transport._errors import LinkError as LinkError
from rpcfut_transport._errors import LocalProtocolError as LocalProtocolError
from rpcfut_transport._errors import MessageLost as MessageLost
from rpcfut_transport._errors import PeerLost as PeerLost
from rpcfut_transport._errors import QueueFull as QueueFull
from rpcfut_transport._errors import RemoteProtocolError as RemoteProtocolError
from rpcfut_transport._errors import TransportError as TransportError
from rpcfut_transport._errors import UnknownPeer as UnknownPeer
from rpcfut_transport._errors import in_units as in_units
from rpcfut_transport._flow import Ticket as Ticket
from rpcfut_transport._flow import TicketState as TicketState
from rpcfut_transport._flow import message_nbytes as message_nbytes
from rpcfut_transport._inbox import Inbox as Inbox
from rpcfut_transport._inbox import Waiter as Waiter
from rpcfut_transport._patience import LOST_AFTER_S as LOST_AFTER_S
from rpcfut_transport._patience import Patience as Patience
from rpcfut_transport._peers import PeerRecord as PeerRecord
from rpcfut_transport._peers import describe_this_process as describe_this_process
from rpcfut_transport._rooms import QUEUE_NBYTES as QUEUE_NBYTES
from rpcfut_transport._rooms import Admission as Admission
from rpcfut_transport._rooms import QueueView as QueueView
from rpcfut_transport._rooms import Rooms as Rooms
from rpcfut_transport._wire import MAX_BUFFERS as MAX_BUFFERS
from rpcfut_transport._wire import Kind as Kind
from rpcfut_transport.links import FaultKind as FaultKind
from rpcfut_transport.links import FaultPlan as FaultPlan
from rpcfut_transport.links import FaultRule as FaultRule
from rpcfut_transport.links import Link as Link
from rpcfut_transport.links import LinkOptions as LinkOptions
from rpcfut_transport.links import MemoryLink as MemoryLink
from rpcfut_transport.links import MemoryNetwork as MemoryNetwork
from rpcfut_transport.links import NetworkOptions as NetworkOptions
from rpcfut_transport.links import OnWay as OnWay
from rpcfut_transport.links import WayEvent as WayEvent
from rpcfut_transport.links import ZmqLink as ZmqLink
from rpcfut_transport.links import find_control_sockets as find_control_sockets

__all__ = [
    "KEEP_ALIVE_MIN_NBYTES",
    "LOST_AFTER_S",
    "MAX_BUFFERS",
    "QUEUE_NBYTES",
    "Admission",
    "AuthenticationError",
    "Buffer",
    "CallNote",
    "CallView",
    "Clock",
    "ClosedError",
    "Counters",
    "Crew",
    "Endpoint",
    "FaultKind",
    "FaultPlan",
    "FaultRule",
    "Handler",
    "Inbox",
    "IncomingCall",
    "Kind",
    "Link",
    "LinkError",
    "LinkOptions",
    "LocalProtocolError",
    "ManualClock",
    "MemoryLink",
    "MemoryNetwork",
    "MessageLost",
    "MonotonicClock",
    "NetworkOptions",
    "OnWay",
    "Patience",
    "PeerLost",
    "PeerRecord",
    "PeerView",
    "QueueFull",
    "QueueView",
    "RemoteProtocolError",
    "ReplySink",
    "Rooms",
    "Ticket",
    "TicketState",
    "TransportError",
    "UnknownPeer",
    "Waiter",
    "WayEvent",
    "Work",
    "ZmqLink",
    "describe_this_process",
    "find_control_sockets",
    "in_units",
    "message_nbytes",
]
