"""Futures for remote calls between GPU workers."""

from rpcfut._agent import Agent as Agent
from rpcfut._api import expose as expose
from rpcfut._api import expose_torch as expose_torch
from rpcfut._api import get_worker_info as get_worker_info
from rpcfut._api import get_worker_infos as get_worker_infos
from rpcfut._api import rpc_async as rpc_async
from rpcfut._api import rpc_sync as rpc_sync
from rpcfut._api import watch_workers as watch_workers
from rpcfut._backward import backward as backward
from rpcfut._errors import AuthenticationError as AuthenticationError
from rpcfut._errors import CallRefusedError as CallRefusedError
from rpcfut._errors import CaptureError as CaptureError
from rpcfut._errors import DeadlockError as DeadlockError
from rpcfut._errors import DecodeError as DecodeError
from rpcfut._errors import DeviceMismatchError as DeviceMismatchError
from rpcfut._errors import DuplicateNameError as DuplicateNameError
from rpcfut._errors import EncodeError as EncodeError
from rpcfut._errors import ExtractionError as ExtractionError
from rpcfut._errors import FunctionRefusedError as FunctionRefusedError
from rpcfut._errors import InvalidStateError as InvalidStateError
from rpcfut._errors import LifecycleError as LifecycleError
from rpcfut._errors import MessageLostError as MessageLostError
from rpcfut._errors import MissingWorkersError as MissingWorkersError
from rpcfut._errors import NotExposedError as NotExposedError
from rpcfut._errors import PeerLostError as PeerLostError
from rpcfut._errors import PoolExhaustedError as PoolExhaustedError
from rpcfut._errors import QueueFullError as QueueFullError
from rpcfut._errors import RemoteError as RemoteError
from rpcfut._errors import RendezvousError as RendezvousError
from rpcfut._errors import RpcError as RpcError
from rpcfut._errors import RpcTimeoutError as RpcTimeoutError
from rpcfut._errors import StoreLostError as StoreLostError
from rpcfut._errors import StreamContextError as StreamContextError
from rpcfut._errors import UnknownWorkerError as UnknownWorkerError
from rpcfut._extract import DataRef as DataRef
from rpcfut._extract import extract as extract
from rpcfut._future import Future as Future
from rpcfut._group import as_completed as as_completed
from rpcfut._group import collect_all as collect_all
from rpcfut._group import gather_outcomes as gather_outcomes
from rpcfut._group import wait_all as wait_all
from rpcfut._host_stream import stream as stream
from rpcfut._joining import init_rpc as init_rpc
from rpcfut._joining import shutdown as shutdown
from rpcfut._options import AgentOptions as AgentOptions
from rpcfut._outcome import Cancelled as Cancelled
from rpcfut._outcome import Failure as Failure
from rpcfut._outcome import Outcome as Outcome
from rpcfut._outcome import Value as Value
from rpcfut._pending import PendingReport as PendingReport
from rpcfut._pending_signal import PendingOnSignal as PendingOnSignal
from rpcfut._pending_signal import report_pending_on as report_pending_on
from rpcfut._process import current_agent as current_agent
from rpcfut._registry import extractors as extractors
from rpcfut._registry import no_device_data as no_device_data
from rpcfut._registry import register_extractor as register_extractor
from rpcfut._registry import register_type as register_type
from rpcfut._serving import ServedCall as ServedCall
from rpcfut._serving import current_call as current_call
from rpcfut._watching import Watch as Watch
from rpcfut._watching import WorkerEvent as WorkerEvent
from rpcfut._workers import WorkerInfo as WorkerInfo

__all__ = [
    "Agent",
    "AgentOptions",
    "AuthenticationError",
    "CallRefusedError",
    "Cancelled",
    "CaptureError",
    "DataRef",
    "DeadlockError",
    "DecodeError",
    "DeviceMismatchError",
    "DuplicateNameError",
    "EncodeError",
    "ExtractionError",
    "Failure",
    "FunctionRefusedError",
    "Future",
    "InvalidStateError",
    "LifecycleError",
    "MessageLostError",
    "MissingWorkersError",
    "NotExposedError",
    "Outcome",
    "PeerLostError",
    "PendingOnSignal",
    "PendingReport",
    "PoolExhaustedError",
    "QueueFullError",
    "RemoteError",
    "RendezvousError",
    "RpcError",
    "RpcTimeoutError",
    "ServedCall",
    "StoreLostError",
    "StreamContextError",
    "UnknownWorkerError",
    "Value",
    "Watch",
    "WorkerEvent",
    "WorkerInfo",
    "as_completed",
    "backward",
    "collect_all",
    "current_agent",
    "current_call",
    "expose",
    "expose_torch",
    "extract",
    "extractors",
    "gather_outcomes",
    "get_worker_info",
    "get_worker_infos",
    "init_rpc",
    "no_device_data",
    "register_extractor",
    "register_type",
    "report_pending_on",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "stream",
    "wait_all",
    "watch_workers",
]
