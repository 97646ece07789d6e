"""What processes of their own do with links: too much, too little, or fork."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from typing import TYPE_CHECKING

from rpcfut_transport import LinkError, UnknownPeer, ZmqLink
from tests.support.links import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable


def _sender_to_nobody() -> ZmqLink:
    link, gone = ZmqLink(), ZmqLink()
    link.connect(1, gone.address)
    gone.close()
    for _ in range(50):
        link.send(1, [b"for nobody", bytes(200_000)])
    return link


def close_what_cannot_leave() -> str:
    """Close a link with messages that nobody will ever take."""
    _sender_to_nobody().close()
    return "closed"


def forget_what_cannot_leave() -> str:
    """Have such a link collected, without closing it."""
    link = _sender_to_nobody()
    del link
    gc.collect()
    return "collected"


def end_with_what_cannot_leave() -> str:
    """Leave such a link to the end of the process."""
    globals()["kept"] = _sender_to_nobody()
    return "ending"


def run_out_of_files() -> str:
    """Connect more peers than the hard limit of open files has room for."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    link, other = ZmqLink(), ZmqLink()
    said = ""
    for rank in range(200):
        try:
            link.connect(rank, other.address)
        except LinkError as error:
            said = str(error)
            break
        link.send(rank, [b"%d" % rank])
    # Those that there was room for work.
    got = [other.receive(PATIENCE_S) for _ in range(rank)]
    assert sorted(int(frames[0]) for frames in got if frames) == list(range(rank))
    with contextlib.suppress(UnknownPeer):
        link.send(rank, [b""])
    for one in (link, other):
        one.close()
    return said


def run_out_of_files_for_links() -> str:
    """Make more links than there is room for; the last one leaves nothing behind."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    links: list[ZmqLink] = []
    try:
        while len(links) < 100:
            links += [ZmqLink()]
    except LinkError as error:
        said = str(error)
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        try:
            ZmqLink()
        except LinkError:
            continue
        raise AssertionError("there was room for one more")
    assert len(os.listdir("/proc/self/fd")) == files, "failing costs files"
    for link in links:
        link.close()
    return said


def low_soft_limit_is_raised() -> str:
    """Connect more peers than the soft limit has room for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    link, other = ZmqLink(), ZmqLink()
    for rank in range(300):
        link.connect(rank, other.address)
    for one in (link, other):
        one.close()
    return f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256}"


def _in_fork(act: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - told by the code
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_with_links() -> str:
    """Fork between messages; the child closes, collects or leaves what it inherited."""
    sender, receiver = ZmqLink(), ZmqLink()
    sender.connect(1, receiver.address)
    receiver.connect(1, receiver.address)

    def close() -> None:
        sender.close()
        receiver.close()

    codes = []
    for number, act in enumerate((close, gc.collect, lambda: None)):
        sender.send(1, [b"before"])
        codes.append(_in_fork(act))
        sender.send(1, [b"%d" % number, bytes(200_000)])
        assert receiver.receive(PATIENCE_S) == [b"before"]
        frames = receiver.receive(PATIENCE_S)
        assert frames is not None
        assert frames[0] == b"%d" % number
    assert os.path.exists(receiver.address.removeprefix("ipc://"))
    close()
    assert not os.path.exists(receiver.address.removeprefix("ipc://"))
    return str(codes)
