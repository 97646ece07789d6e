"""How this process becomes a worker of a group, and stops being one."""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from rpcfut._agent import Agent
from rpcfut._errors import (
    AuthenticationError,
    LifecycleError,
    RendezvousError,
    StoreLostError,
)
from rpcfut._identity import Identity
from rpcfut._meeting_place import MeetingPlace, open_meeting_place
from rpcfut._open_group import OpenGroup
from rpcfut._options import AgentOptions
from rpcfut._process import Process, lock, this_process
from rpcfut._records import OPEN
from rpcfut._rendezvous import Rendezvous
from rpcfut._secret import Signer
from rpcfut._store import within
from rpcfut_transport import (
    LOST_AFTER_S,
    QUEUE_NBYTES,
    MonotonicClock,
    Patience,
    TransportError,
    ZmqLink,
    describe_this_process,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rpcfut._options import WhenFull
    from rpcfut._placement import DeviceMap, Policy
    from rpcfut_transport import Clock

_Meeting: TypeAlias = Rendezvous | OpenGroup
_log = logging.getLogger("rpcfut.api")

_MAX_NAME = 128
_LEAST_S = 0.5
_AGAIN_S = 0.1
_LEAVE_S = 2.0


def init_rpc(  # noqa: PLR0913 - the options of a job, all by name
    name: str,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    init_method: str = "env://",
    timeout_s: float | None = None,
    join_timeout_s: float = 300.0,
    max_threads: int = 256,
    expose: Iterable[str] = (),
    placement: Policy = "error",
    device_maps: Mapping[str, DeviceMap] | None = None,
    secret: str | None = None,
    interface: str | None = None,
    ports: tuple[int, int] | None = None,
    queue_nbytes: int = QUEUE_NBYTES,
    when_full: WhenFull = "block",
    lost_after_s: float = LOST_AFTER_S,
) -> None:
    """Join the group, and return when all its workers can be called.

    A process that takes the rank of one that ended in a group of fixed size, or in an
    open group its name, takes its place: calls to the earlier one have failed, and it
    starts without what that one knew.

    Args:
        name: This worker's name, unique in the group: letters, digits and ``_ - : .``.
        rank: This worker's rank; for ``env://`` taken from ``RANK`` if not given.
        world_size: Size of the group; for ``env://`` taken from ``WORLD_SIZE``. With
            neither rank nor world size the group is open: workers join and leave at any
            time, their ranks count in the order of joining, and this returns when all
            that are members by now know this worker.
        init_method: Where the workers meet: ``env://`` (as torchrun sets it; a group
            of one needs nothing to be set), ``tcp://host:port`` (rank 0 listens there;
            without ranks, whoever comes first on that host), ``file:///path`` (a file
            of their own) or ``peers://host:port,host:port`` (where each rank listens).
        timeout_s: Deadline of calls that name none, in seconds. By default there is
            none: first calls compile kernels, and a lost peer is noticed without it.
        join_timeout_s: How long to wait for the other workers, in seconds.
        max_threads: How many threads may serve calls, waiting ones included.
        expose: What peers may call besides what `rpcfut.expose` lets them: paths that
            are imported here. ``"module:function"`` is one function; ``"module"`` all
            that it defines at its top level, unless their names start with an
            underscore; ``"package.*"`` the same for the package and all modules below
            it that are imported here, now or later.
        placement: What to do with an array whose device this worker does not have:
            ``"error"`` fails its call, ``"cpu"`` keeps it on the host.
        device_maps: For each peer, by name, which of its devices each of this worker's
            is: ``{"w1": {"cuda:0": "cuda:1"}}``. Used for calls in both directions and
            for their answers, so one of the two workers says it. Devices that are not
            named correspond by their index.
        secret: What only the workers of this job know, at least 32 characters; by
            default what ``RPCFUT_SECRET`` says, or the file that ``RPCFUT_SECRET_FILE``
            names. With it, workers on other hosts can join, and all that goes between
            hosts is encrypted. Without, all must be on one host and of one user.
        interface: Name or address of the interface that other hosts reach, as
            ``"eth0"``; by default the one that leads to where the workers meet.
        ports: The first and the last port that this worker may listen at for other
            hosts; by default any. Each worker of a host takes one.
        queue_nbytes: How many bytes of calls may be on their way to a worker before
            they are started there, and how many of answers before they are read. A
            single call may be larger.
        when_full: What a call does that finds no room: ``"block"`` until there is some,
            its deadline passes or the worker is lost; or ``"fail"`` at once with
            `QueueFullError`.
        lost_after_s: For how long a worker may be stopped or cut off before it counts
            as lost, in seconds. That of a worker on this host whose process ends is
            seen at once, and it may be stopped for as long as it likes.

    Raises:
        AuthenticationError: When this worker's secret is not that of the others, is
            missing, or cannot be read.
        FunctionRefusedError: When one of `expose` does not exist.
        LifecycleError: When this process has joined already.
        MissingWorkersError: When some ranks did not come in time; names them.
        DuplicateNameError: When another rank has the name; names both.
        RendezvousError: When the group does not come together for another reason; a
            device map to a missing device for one, on all workers.
        ValueError: When the name, the placement, a device map or what is said of queues
            is not usable; or when `interface` or `ports` are given, but no secret.
    """
    _check_name(name)
    patience = Patience(lost_after_s=lost_after_s)
    identity = Identity.find(secret, interface, ports, init_method, patience)
    del secret  # tools print the locals of what fails
    options = AgentOptions(
        timeout_s=timeout_s,
        max_threads=max_threads,
        placement=placement,
        device_maps=device_maps or {},
        queue_nbytes=queue_nbytes,
        when_full=when_full,
        lost_after_s=lost_after_s,
    )
    if not join_timeout_s > 0:
        raise ValueError(f"join_timeout_s must be positive, got {join_timeout_s!r}")
    process = this_process()
    if isinstance(expose, str):
        raise TypeError(f"expose= wants a list of paths; write expose=[{expose!r}]")
    for path in expose:
        process.exposed.expose_path(path)
    with lock:
        if process.agent is not None or process.is_joining:
            known = process.agent.info.name if process.agent is not None else "joining"
            raise LifecycleError(
                f"this process has joined already ({known!r}); "
                "call rpcfut.shutdown() first"
            )
        process.is_joining = True
    try:
        _join_in_time(
            name,
            lambda left_s: open_meeting_place(init_method, rank, world_size, left_s),
            process,
            options,
            identity,
            join_timeout_s,
        )
    finally:
        process.is_joining = False


def _join_in_time(
    name: str,
    find: Callable[[float], MeetingPlace],
    process: Process,
    options: AgentOptions,
    identity: Identity,
    timeout_s: float,
) -> None:
    """Join; where the store is lost meanwhile, once more.

    Where groups follow each other, rank 0 may just close the store of the one before.
    """
    clock = MonotonicClock()
    deadline_s = clock.now_s() + timeout_s
    while True:
        left_s = max(deadline_s - clock.now_s(), _LEAST_S)
        place = find(left_s)
        try:
            meeting = _meeting(place, identity, clock, left_s)
            _join(name, meeting, process, options, identity, left_s)
        except StoreLostError as error:
            if clock.now_s() + _LEAST_S > deadline_s:
                raise
            _log.info("worker %r joins again: %s", name, error)
            threading.Event().wait(_AGAIN_S)
        else:
            return


def _meeting(
    place: MeetingPlace, identity: Identity, clock: Clock, timeout_s: float
) -> _Meeting:
    signer = Signer(identity.secret, place.prefix)
    if place.rank is None or place.world_size is None:
        return OpenGroup(place.store, prefix=place.prefix, signer=signer)
    return Rendezvous(
        place.store,
        prefix=place.prefix,
        rank=place.rank,
        world_size=place.world_size,
        clock=clock,
        timeout_s=timeout_s,
        signer=signer,
    )


def _join(
    name: str,
    meeting: _Meeting,
    process: Process,
    options: AgentOptions,
    identity: Identity,
    timeout_s: float,
) -> None:
    """Join, or leave nothing behind: no socket, no record, nobody who waits for us."""
    with ExitStack() as undo:
        undo.callback(meeting.withdraw)
        try:
            link = ZmqLink(identity.link)
            undo.callback(link.close)
            me = describe_this_process(
                rank=0,
                name=name,
                incarnation=secrets.randbits(62) + 1,
                address=link.address,
                tcp_address=link.tcp_address,
                public_key=link.public_key,
            )
            meeting.claim(name, me)
            record = replace(me, rank=meeting.rank)
            agent = Agent(record, link, process.exposed, options=options)
            undo.callback(agent.close)
            agent.observer.answer_at(link.control_path)
            # Peers that are ready a moment earlier call at once, and what they call
            # may call on.
            process.agent = agent
            undo.callback(setattr, process, "agent", None)
            _meet(agent, meeting, timeout_s)
            link.refuse_strangers()  # who comes later introduces itself
            agent.before_goodbye = partial(_take_leave, meeting)
            # It may serve the store, in which the others say that they leave.
            agent.leaves_last = meeting.rank == 0 and meeting.form.world_size != OPEN
        except TransportError as error:
            meeting.give_up(str(error))
            raise RendezvousError(f"worker {name!r} cannot join: {error}") from error
        except AuthenticationError as error:
            meeting.give_up(str(error))
            raise
        except RendezvousError:
            raise  # the others see the same, or were told
        except BaseException as error:
            meeting.give_up(repr(error))
            raise
        undo.pop_all()
    _log.info("worker %r joined as rank %s: %r", name, meeting.rank, agent.workers)


def _meet(agent: Agent, meeting: _Meeting, timeout_s: float) -> None:
    records = meeting.exchange(agent.record)
    if isinstance(meeting, Rendezvous) and not meeting.is_return:
        try:
            agent.start(records, meeting.form)
        except TransportError:
            meeting.raise_if_failed()  # one that gave up is not there any more
            raise
        meeting.barrier(lambda: agent.lost)
        return
    agent.start([agent.record], meeting.form)
    agent.membership.introduce(records, meeting.is_published, timeout_s)


def _take_leave(meeting: _Meeting) -> None:
    """Say in the store that this worker leaves, if it still answers."""
    try:
        within(_LEAVE_S, meeting.leave, "say goodbye in the store")
    except RendezvousError as error:
        _log.debug("%s", error)


def _check_name(name: str) -> None:
    good = (
        isinstance(name, str)
        and 0 < len(name) <= _MAX_NAME
        and all(c.isascii() and (c.isalnum() or c in "_-:.") for c in name)
    )
    if not good:
        raise ValueError(
            f"a worker's name has 1 to {_MAX_NAME} letters, digits or '_-:.', "
            f"got {name!r}"
        )


def shutdown(graceful: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002 - torch's signature
    """Leave the group. Does nothing if there is none; may be repeated.

    Args:
        graceful: Wait until this worker's calls are answered and all others are ready
            to leave too. Calls are served meanwhile.
        timeout: How long to wait for that, in seconds; then it leaves anyway, with a
            warning. None waits as long as the others live.
    """
    process = this_process()
    agent = process.agent
    if agent is None:
        return
    try:
        agent.shutdown(graceful=graceful, timeout=timeout)
    finally:
        with lock:
            if process.agent is agent:
                agent.close()
                process.agent = None
