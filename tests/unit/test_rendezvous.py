"""Ranks meet in a store that anyone may have written to."""

from __future__ import annotations

import json
import logging
import socket
import threading

import pytest

import rpcfut
from rpcfut._meeting_place import open_meeting_place
from rpcfut._rendezvous import Rendezvous
from rpcfut.transport import ManualClock, MonotonicClock, PeerRecord


class DictStore:
    """A c10d store that is a dict."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def delete_key(self, key: str, /) -> bool:
        return self.values.pop(key, None) is not None

    def set(self, key: str, value: str | bytes, /) -> None:
        self.values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str, /) -> bytes:
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        if self.values.get(key, b"") == expected.encode():
            self.values[key] = desired.encode()
        return self.values.get(key, expected.encode())

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        return [self.get(key) for key in keys]

    def add(self, key: str, amount: int, /) -> int:
        self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
        return int(self.values[key])


class BrokenStore(DictStore):
    """A store whose server is gone."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        raise RuntimeError("Failed to recv\n and many lines more")

    def set(self, key: str, value: str | bytes, /) -> None:
        raise RuntimeError("Failed to recv\n and many lines more")


def record(rank: int, name: str = "w") -> PeerRecord:
    return PeerRecord(
        rank=rank,
        name=f"{name}{rank}",
        incarnation=rank + 7,
        address=f"ipc:///nowhere/{rank}",
        pid=1,
        start_time=2,
        pid_namespace=3,
        host_id="here",
    )


HERE = record(0)  # of a host that nobody is on


def meeting(
    store: DictStore, rank: int = 0, world_size: int = 2, timeout_s: float = 5.0
) -> Rendezvous:
    return Rendezvous(
        store,
        prefix="p",
        rank=rank,
        world_size=world_size,
        clock=MonotonicClock(),
        timeout_s=timeout_s,
    )


def publish(store: DictStore, rank: int, /, **changes: object) -> None:
    fields = {n: getattr(record(rank), n) for n in PeerRecord.__dataclass_fields__}
    store.set(f"p/0/member/{rank}", json.dumps({**fields, "world_size": 2, **changes}))


def test_all_ranks_get_all_records() -> None:
    store = DictStore()
    seen: dict[int, list[PeerRecord]] = {}

    def join(rank: int) -> None:
        one = meeting(store, rank)
        one.claim(f"w{rank}", HERE)
        seen[rank] = one.exchange(record(rank))
        one.barrier()

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == {rank: [record(0), record(1)] for rank in range(2)}


def test_b99_a_taken_name_names_both_ranks_and_tells_the_others() -> None:
    store = DictStore()
    meeting(store, 0).claim("w", HERE)
    with pytest.raises(rpcfut.DuplicateNameError, match=r"ranks 0 and 1 .* 'w'"):
        meeting(store, 1).claim("w", HERE)
    with pytest.raises(rpcfut.RendezvousError, match="rank 1: ranks 0 and 1 both want"):
        meeting(store, 0).exchange(record(0))


def test_a_rank_that_comes_twice_is_named() -> None:
    store = DictStore()
    publish(store, 0, pid=99)
    with pytest.raises(rpcfut.RendezvousError, match=r"two processes say .* rank 0"):
        meeting(store, 0).exchange(record(0))


def test_different_world_sizes_are_named() -> None:
    store = DictStore()
    publish(store, 1, world_size=5)
    with pytest.raises(
        rpcfut.RendezvousError, match="has 2 workers, rank 1 that it has 5"
    ):
        meeting(store, 0).exchange(record(0))


def test_b97_who_is_missing_is_said_while_waiting_and_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The clock is ours; each look at it is six seconds later."""

    class Clock(ManualClock):
        def now_s(self) -> float:
            self.advance(6.0)
            return super().now_s()

    one = Rendezvous(
        DictStore(), prefix="p", rank=0, world_size=3, clock=Clock(), timeout_s=60.0
    )
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(rpcfut.MissingWorkersError, match="rank 1, 2 of 3 did not come"),
    ):
        one.exchange(record(0))
    assert "rank 0 is still waiting for rank 1, 2 of 3" in caplog.text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"{}",
        b"[" * 4000,
        b"x" * 5000,
        json.dumps({"rank": 1}).encode(),
    ],
)
def test_a_malformed_record_is_refused(raw: bytes) -> None:
    store = DictStore()
    store.set("p/0/member/1", raw)
    with pytest.raises(rpcfut.RendezvousError, match="record of rank 1"):
        meeting(store, 0).exchange(record(0))


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 0},
        {"pid": "1"},
        {"pid": 2**70},
        {"name": None},
        {"name": "\x1b[2J"},
        {"incarnation": -1},
        {"incarnation": 2**64},
        {"address": "ipc:///\ud800"},
    ],
)
def test_a_record_with_a_wrong_field_is_refused(change: dict[str, object]) -> None:
    store = DictStore()
    publish(store, 1, **change)
    with pytest.raises(rpcfut.RendezvousError, match="record of rank 1 is malformed"):
        meeting(store, 0).exchange(record(0))


def test_a_store_that_fails_is_an_error_of_ours_in_one_line() -> None:
    with pytest.raises(rpcfut.RendezvousError, match=r"failed: Failed to recv$"):
        meeting(BrokenStore()).claim("w", HERE)
    with pytest.raises(rpcfut.RendezvousError, match=r"failed: Failed to recv$"):
        meeting(BrokenStore()).barrier()


def test_a_file_in_no_folder_is_refused_at_once() -> None:
    with pytest.raises(rpcfut.RendezvousError, match="no folder '/nonexistent/dir'"):
        open_meeting_place("file:///nonexistent/dir/x", 0, 1, 5.0)


def test_a_server_that_is_none_is_given_up_in_time() -> None:
    """Something else listens there and never answers: torch would wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(rpcfut.RendezvousError, match=f"127.0.0.1:{port}"):
            open_meeting_place(f"tcp://127.0.0.1:{port}", 1, 2, 0.5)


@pytest.mark.parametrize(
    ("init_method", "rank", "world_size", "text"),
    [
        ("env://", None, 2, "environment variable RANK"),
        ("env://", 0, None, "environment variable WORLD_SIZE"),
        ("env://", 0, 2, "environment variable MASTER_ADDR"),
        ("tcp://host:1", None, 2, "pass rank= and world_size="),
        ("tcp://host", 0, 2, "init_method must be"),
        ("pigeon://x", 0, 2, "init_method must be"),
        ("file:///tmp/x", 2, 2, r"rank must be in \[0, world_size\)"),
        ("file:///tmp/x", -1, 2, r"rank must be in \[0, world_size\)"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    init_method: str,
    rank: int | None,
    world_size: int | None,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(rpcfut.RendezvousError, match=text):
        open_meeting_place(init_method, rank, world_size, 1.0)


@pytest.mark.parametrize("field", ["name", "incarnation", "address"])
def test_two_records_that_are_one_worker_are_refused(field: str) -> None:
    """Or a call to the one would run on the other."""
    store = DictStore()
    publish(store, 1, **{field: getattr(record(2), field)})
    publish(store, 2)
    store.values = {k: v.replace(b": 2}", b": 3}") for k, v in store.values.items()}
    with pytest.raises(rpcfut.RendezvousError, match=f"ranks 1 and 2 have one {field}"):
        meeting(store, 0, world_size=3).exchange(record(0))


def test_a_changed_record_of_ones_own_is_noticed() -> None:
    class Changing(DictStore):
        def get(self, key: str, /) -> bytes:
            return super().get(key).replace(b"/nowhere/0", b"/elsewhere")

    store = Changing()
    publish(store, 1)
    with pytest.raises(rpcfut.RendezvousError, match="changed the record of rank 0"):
        meeting(store, 0).exchange(record(0))


def test_who_failed_may_try_again_in_the_same_place() -> None:
    """Nothing of the first try stays behind to be met."""
    store = DictStore()
    first = meeting(store, 0, timeout_s=0.01)
    first.claim("w0", HERE)
    with pytest.raises(rpcfut.MissingWorkersError):
        first.exchange(record(0))
    first.withdraw()
    assert store.values == {}
    again = meeting(store, 0)
    again.claim("w0", HERE)
    publish(store, 1)
    assert again.exchange(record(0))[1] == record(1)


def test_a_rank_that_is_lost_while_joining_is_not_waited_for() -> None:
    store = DictStore()
    publish(store, 1)
    one = meeting(store, 0, timeout_s=600)
    one.exchange(record(0))
    with pytest.raises(rpcfut.MissingWorkersError, match="rank 1 of 2 was lost"):
        one.barrier(lambda: {1})
