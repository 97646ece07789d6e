"""For tests of code that uses rpcfut."""

from rpcfut.testing._cluster import local_cluster as local_cluster
from rpcfut.testing._processes import process_cluster as process_cluster
from rpcfut.testing._sim_array import HostBuffer as HostBuffer
from rpcfut.testing._sim_array import SimArray as SimArray
from rpcfut.testing._sim_errors import Allocation as Allocation
from rpcfut.testing._sim_errors import BrokenCaptureError as BrokenCaptureError
from rpcfut.testing._sim_errors import Operation as Operation
from rpcfut.testing._sim_errors import RaceError as RaceError
from rpcfut.testing._sim_errors import UseAfterFreeError as UseAfterFreeError
from rpcfut.testing._sim_simulation import Simulation as Simulation
from rpcfut.testing._sim_simulation import simulate as simulate
from rpcfut.testing._sim_stream import SimEvent as SimEvent
from rpcfut.testing._sim_stream import SimStream as SimStream

__all__ = [
    "Allocation",
    "BrokenCaptureError",
    "HostBuffer",
    "Operation",
    "RaceError",
    "SimArray",
    "SimEvent",
    "SimStream",
    "Simulation",
    "UseAfterFreeError",
    "local_cluster",
    "process_cluster",
    "simulate",
]
