"""Folders of inboxes: ours while we live, swept once we are dead."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from rpcfut_transport.links import _inbox_folder
from rpcfut_transport.links._inbox_folder import (
    CONTROL,
    INBOX,
    PREFIX,
    InboxFolder,
    find_control_sockets,
    sweep,
)
from tests.support.links import network_link


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch):
    with tempfile.TemporaryDirectory(prefix="b") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder


def make_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as inbox:
        inbox.bind(path)


def test_only_we_can_enter_it_and_closing_removes_it(base) -> None:
    folder = InboxFolder()
    assert Path(folder.path).stat().st_mode & 0o777 == 0o700
    assert folder.inbox == f"{folder.path}/{INBOX}"
    folder.close()
    folder.close()
    assert os.listdir(base) == []


def test_a_living_owner_keeps_its_folder(base) -> None:
    folder = InboxFolder()
    make_socket(folder.inbox)
    assert sweep(base) == 0
    assert Path(folder.inbox).exists()
    folder.close()


@pytest.mark.parametrize("names", [["inbox", "control"], ["inbox"], ["control"]])
def test_a_dead_owners_folder_is_swept(base, names) -> None:
    """The kernel lets the lock go when the owner ends; so does closing the file."""
    folder = InboxFolder()
    for name in names:
        make_socket(getattr(folder, name))
    os.close(folder._lock_fd)
    assert sweep(base) == 1
    assert os.listdir(base) == []
    folder._lock_fd = -1


def test_what_is_just_being_made_is_left_alone(base) -> None:
    young = Path(base, f"{PREFIX}young")
    young.mkdir(0o700)
    assert sweep(base) == 0
    young.joinpath("lock").touch()
    assert sweep(base) == 0
    old = young.joinpath("lock").stat().st_mtime - 5
    os.utime(young / "lock", (old, old))
    assert sweep(base) == 1


def test_what_is_not_ours_is_left_alone(base) -> None:
    outside = Path(base, "precious")
    outside.mkdir()
    Path(base, f"{PREFIX}link").symlink_to(outside)
    Path(base, f"{PREFIX}file").touch()
    Path(base, "other").mkdir()
    assert sweep(base) == 0
    assert len(os.listdir(base)) == 4


def test_a_folder_with_something_else_in_it_is_left_alone(base) -> None:
    """It has our name, and no lock, but somebody keeps his things there."""
    folder = Path(base, f"{PREFIX}old")
    folder.mkdir(0o700)
    folder.joinpath(INBOX).write_text("precious")
    old = folder.stat().st_mtime - 1000
    os.utime(folder, (old, old))
    assert sweep(base) == 0
    assert folder.joinpath(INBOX).read_text() == "precious"


def test_the_control_sockets_of_our_workers_are_found(base) -> None:
    """In folders that only we can enter; wherever a living one listens."""
    folder = InboxFolder()
    make_socket(folder.control)
    others = [
        Path(base, f"{PREFIX}{name}") for name in ("open", "file", "link", "none")
    ]
    for other in (*others[:2], others[3]):
        other.mkdir(0o700)
    make_socket(f"{others[0]}/{CONTROL}")
    others[0].chmod(0o755)
    Path(others[1], CONTROL).touch()
    others[2].symlink_to(folder.path)
    Path(base, "other").mkdir(0o700)
    make_socket(f"{base}/other/{CONTROL}")
    assert [p for p in find_control_sockets() if p.startswith(base)] == [folder.control]
    folder.close()
    assert [p for p in find_control_sockets() if p.startswith(base)] == []


def test_a_control_socket_that_listens_elsewhere_is_found(base, monkeypatch) -> None:
    """A worker may have another folder for temporary files than who asks."""
    folder = InboxFolder()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert folder.control not in find_control_sockets()
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(folder.control)
        control.listen()
        assert folder.control in find_control_sockets()
    folder.close()


def test_a_link_without_files_has_a_folder_for_its_control_socket(base) -> None:
    """So that it can be asked what is pending, in its container."""
    link = network_link()
    folder = Path(link.control_path).parent
    assert (str(folder.parent), folder.stat().st_mode & 0o777) == (base, 0o700)
    assert link.address == link.tcp_address
    link.close()
    assert os.listdir(base) == []


def test_a_link_without_files_also_works_without_room_for_a_folder(
    base, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Path(base, "x" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    link = network_link()
    assert link.control_path == ""
    link.close()


def test_a_path_too_long_for_a_socket_is_refused_with_the_way_out(
    base, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Path(base, "x" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(_inbox_folder.LinkError, match="set XDG_RUNTIME_DIR or TMPDIR"):
        InboxFolder()
