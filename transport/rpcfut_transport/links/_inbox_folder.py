"""The folder that holds a worker's inbox socket, and the sweeping of dead ones.

Theory of operation. A folder belongs to the process that holds the lock of the file
`lock` inside it; the kernel drops that lock when the process ends, however it ends. So
whoever gets the lock of a folder of our user knows that its owner is gone, and removes
it. A folder without a lock file is just being made, or left by somebody who was killed
while making it; it is removed when it is old.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import tempfile
from pathlib import Path

from rpcfut_transport._errors import LinkError

_log = logging.getLogger(__name__)

PREFIX = "rpcfut-inbox-"
INBOX = "inbox"
IPC_SCHEME = "ipc://"
CONTROL = "ctrl"  # no longer than the inbox's: both must fit into a socket's address
_LOCK = "lock"
_MKDTEMP_NBYTES = 8  # what tempfile.mkdtemp adds to the prefix
_SUN_PATH_NBYTES = 107
_YOUNG_S = 60.0
_UNIX_PATH_FIELD = 7  # of a line of /proc/net/unix, counted from 0


class InboxFolder:
    """A folder with mode 0700 that is ours until `close`. Owner thread.

    Made under ``XDG_RUNTIME_DIR`` if that is ours, else under the folder for temporary
    files; those that dead processes left there are removed, now and at the end.

    Raises:
        LinkError: When the path would be too long for a socket, or the operating system
            refuses.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._base = _runtime_folder()
        _require_short(self._base)
        sweep(self._base)
        try:
            self.path = tempfile.mkdtemp(prefix=PREFIX, dir=self._base)
            self._lock_fd = os.open(
                f"{self.path}/{_LOCK}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
            )
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        except OSError as error:
            raise LinkError(
                f"cannot make a folder in {self._base!r}: {error}; "
                "set XDG_RUNTIME_DIR or TMPDIR to a folder of yours"
            ) from error

    @property
    def inbox(self) -> str:
        """The path of the socket."""
        return f"{self.path}/{INBOX}"

    @property
    def control(self) -> str:
        """The path of the socket that says what is pending; see `rpcfut._control`."""
        return f"{self.path}/{CONTROL}"

    def close(self) -> None:
        """Remove the folder, then let the lock go; sweep. Idempotent."""
        if self._lock_fd < 0 or os.getpid() != self._pid:
            return  # closed before, or the parent's
        _remove(self.path)
        fd, self._lock_fd = self._lock_fd, -1
        os.close(fd)
        sweep(self._base)


def find_control_sockets() -> list[str]:
    """Return where the workers of this user on this host say what is pending.

    Some may be of workers that have ended. Found are those that listen in this network
    namespace, and those in the usual folders. Any thread.
    """
    found = {path for path in _bound_sockets() if _is_control(path)}
    for base in {_runtime_folder(), tempfile.gettempdir(), f"/run/user/{os.getuid()}"}:
        with contextlib.suppress(OSError):
            found.update(
                path
                for entry in os.scandir(base)
                if _is_control(path := f"{entry.path}/{CONTROL}")
            )
    return sorted(found)


def _bound_sockets() -> list[str]:
    """Paths of the Unix sockets that somebody has bound, as the kernel lists them."""
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    except OSError:
        return []
    fields = [line.split(maxsplit=_UNIX_PATH_FIELD) for line in lines]
    return [each[_UNIX_PATH_FIELD] for each in fields if len(each) > _UNIX_PATH_FIELD]


def _is_control(path: str) -> bool:
    """Whether a path is that of a control socket in a folder that only we can enter."""
    folder = Path(path).parent
    if Path(path).name != CONTROL or not folder.name.startswith(PREFIX):
        return False
    with contextlib.suppress(OSError):
        found = folder.lstat()
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            return mode == stat.S_IRWXU and stat.S_ISSOCK(Path(path).lstat().st_mode)
    return False


def sweep(base: str) -> int:
    """Remove the folders in `base` whose owners are gone; how many."""
    removed = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            if entry.name.startswith(PREFIX) and _remove_if_dead(entry):
                removed += 1
    return removed


def _remove_if_dead(entry: os.DirEntry[str]) -> bool:
    try:
        found = entry.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not is_folder or not _has_only_ours(entry.path):
            return False
        try:
            fd = os.open(
                f"{entry.path}/{_LOCK}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            )
        except FileNotFoundError:
            if _age_s(found) < _YOUNG_S:
                return False
            _remove(entry.path)
            return True
        try:
            # The owner creates the lock file a moment before it locks it.
            sockets = [Path(entry.path, name) for name in (INBOX, CONTROL)]
            if _age_s(os.fstat(fd)) < 1.0 and not any(s.exists() for s in sockets):
                return False
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(entry.path)
        finally:
            os.close(fd)
    except OSError:
        return False  # its owner lives, or somebody else removes it just now
    _log.debug("removed %s, whose owner is gone", entry.path)
    return True


def _has_only_ours(folder: str) -> bool:
    """Whether there is nothing in a folder but what we put into ours."""
    for name in os.listdir(folder):
        mode = Path(folder, name).lstat().st_mode
        is_known = (name in (INBOX, CONTROL) and stat.S_ISSOCK(mode)) or (
            name == _LOCK and stat.S_ISREG(mode)
        )
        if not is_known:
            return False
    return True


def _age_s(found: os.stat_result) -> float:
    """How long ago a file was made, by the clock of the file system."""
    with tempfile.TemporaryFile() as probe:
        return os.fstat(probe.fileno()).st_mtime - found.st_mtime


def _remove(folder: str) -> None:
    for name in (INBOX, CONTROL, _LOCK):
        with contextlib.suppress(FileNotFoundError):
            Path(folder, name).unlink()
    with contextlib.suppress(FileNotFoundError):
        Path(folder).rmdir()


def _runtime_folder() -> str:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):
        found = Path(given).stat()
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if Path(given).is_absolute() and is_ours:
            return given
    return tempfile.gettempdir()


def _require_short(base: str) -> None:
    nbytes = len(os.fsencode(f"{base}/{PREFIX}/{INBOX}")) + _MKDTEMP_NBYTES
    if nbytes > _SUN_PATH_NBYTES:
        raise LinkError(
            f"{base!r} is too long to hold a socket: the path would have "
            f"{nbytes} bytes, at most {_SUN_PATH_NBYTES} fit; "
            "set XDG_RUNTIME_DIR or TMPDIR to a shorter folder of yours"
        )


def require_own_user_id() -> None:
    """Check that our user id is that of one user.

    Raises:
        LinkError: When it stands for all who have none here.
    """
    overflow_uid = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    if os.getuid() == overflow_uid:
        raise LinkError(
            f"user id {overflow_uid} stands for every user without an id here, so it "
            "cannot tell ours from others: run under a user id of your own"
        )


def open_trusted_folder(address: str) -> int:
    """Open the folder of an address if only our user can put a socket there.

    Raises:
        LinkError: When the address is none of ours.
    """
    folder, slash, name = address.removeprefix(IPC_SCHEME).rpartition("/")
    is_path = address.startswith(f"{IPC_SCHEME}/") and slash and name == INBOX
    if not is_path or "\0" in address:
        raise LinkError(f"got the address {address!r}, wanted 'ipc:///…/{INBOX}'")
    try:
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError as error:
        raise LinkError(
            f"the folder of {address!r} belongs to another user: workers of one host "
            "must be of one user, or have a secret"
        ) from error
    except OSError as error:
        raise LinkError(f"cannot open the folder of {address!r}: {error}") from error
    found = os.fstat(fd)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.getuid() or mode != stat.S_IRWXU:
        os.close(fd)
        raise LinkError(
            f"the folder of {address!r} belongs to user {found.st_uid} with mode "
            f"{mode:#o}; wanted user {os.getuid()} and mode 0o700, "
            "so that nobody else can listen there; workers of two users need a secret"
        )
    return fd
