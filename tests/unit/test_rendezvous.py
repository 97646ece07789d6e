"""Ranks meet in a store that anyone may have written to."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

import rpcfut
from rpcfut._meeting_place import open_meeting_place
from rpcfut._member_stores import MemberStores
from rpcfut._open_group import OpenGroup
from rpcfut._records import RecordForm
from rpcfut._rendezvous import Rendezvous
from rpcfut.transport import (
    ManualClock,
    MonotonicClock,
    PeerRecord,
    describe_this_process,
)
from rpcfut_transport._liveness import process_start_time

if TYPE_CHECKING:
    from pathlib import Path


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


def test_why_another_one_gave_up_is_said_while_meeting_it() -> None:
    """Its folder is gone by then, which says nothing to anybody."""
    store = DictStore()
    one, other = meeting(store, 0), meeting(store, 1)
    one.raise_if_failed()
    other.give_up("the folder of rank 0 belongs to user 7")
    with pytest.raises(rpcfut.RendezvousError, match=r"rank 1: the folder .* user 7"):
        one.raise_if_failed()


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


# ---- returning, and the next group ----------------------------------------------


def gone(rank: int) -> PeerRecord:
    """A process that has ended, as far as `me` can tell."""
    return dataclasses.replace(me(rank), start_time=1, incarnation=rank + 70)


def me(rank: int) -> PeerRecord:
    return describe_this_process(
        rank=rank, name=f"w{rank}", incarnation=rank + 7, address=f"ipc:///here/{rank}"
    )


def come_together(store: DictStore, *records: PeerRecord) -> None:
    for one in records:
        store.set(f"p/0/member/{one.rank}", RecordForm(len(records)).write(one))
        store.set(f"p/0/name/{one.name}", str(one.rank))
        store.set(f"p/0/ready/{one.rank}", "1")
    store.set("p/latest", "0")


def test_b100_a_rank_returns_to_a_group_that_had_come_together() -> None:
    store = DictStore()
    come_together(store, gone(0), record(1))
    one = meeting(store, 0)
    one.claim("w0", me(0))
    assert one.is_return
    assert one.exchange(me(0)) == [me(0), record(1)]
    assert one.is_published(record(1))
    assert not one.is_published(gone(0))
    one.withdraw()
    assert store.check(["p/0/member/0"]), "who returned has nothing to take back"


def test_b99_a_rank_whose_process_runs_is_not_taken() -> None:
    store = DictStore()
    running = dataclasses.replace(me(0), pid=os.getppid(), start_time=parent_start())
    come_together(store, running, record(1))
    with pytest.raises(rpcfut.RendezvousError, match="two processes say"):
        meeting(store, 0).claim("w0", me(0))


def parent_start() -> int:
    return process_start_time(os.getppid()) or 0


def test_b100_who_ended_is_gone_before_its_parent_looks_after_it() -> None:
    """A launcher may be slow, or start the next one first."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        other = dataclasses.replace(
            me(1), pid=child.pid, start_time=process_start_time(child.pid) or 0
        )
        assert not me(0).sees_end_of(other)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert me(0).sees_end_of(other)
    assert me(0).sees_end_of(other)


def test_a_group_that_all_left_is_followed_by_the_next() -> None:
    store = DictStore()
    come_together(store, me(0), record(1))
    for rank in range(2):
        store.set(f"p/0/left/{rank}", "1")
    one = meeting(store, 0)
    one.claim("w0", me(0))
    assert not one.is_return
    publish_in_next = json.loads(RecordForm(2).write(record(1)))
    store.set("p/1/member/1", json.dumps(publish_in_next))
    assert one.exchange(me(0))[1] == record(1)


def test_a_group_whose_processes_all_ended_is_followed_by_the_next() -> None:
    """A file that an earlier run left behind is in nobody's way."""
    store = DictStore()
    come_together(store, gone(0), gone(1))
    one = meeting(store, 0)
    one.claim("other", me(0))
    assert not one.is_return
    assert store.get("p/1/name/other") == b"0"


def test_one_that_ended_while_joining_is_replaced() -> None:
    """The group had not come together: there is nothing to return to."""
    store = DictStore()
    store.set("p/0/member/0", RecordForm(2).write(gone(0)))
    store.set("p/0/name/w0", "0")
    publish(store, 1)
    one = meeting(store, 0)
    one.claim("w0", me(0))
    assert not one.is_return
    assert one.exchange(me(0)) == [me(0), record(1)]


def test_b96_each_look_at_the_store_is_one_question() -> None:
    """B96: or forty workers would ask sixteen hundred in each round."""

    class Counting(DictStore):
        def __init__(self) -> None:
            super().__init__()
            self.questions = 0

        def check(self, keys: list[str], /) -> bool:
            self.questions += 1
            return super().check(keys)

        def get(self, key: str, /) -> bytes:
            self.questions += 1
            return super().get(key)

        def multi_get(self, keys: list[str], /) -> list[bytes]:
            self.questions += 1
            return [self.values[key] for key in keys]

    store = Counting()
    for rank in range(1, 100):
        publish(store, rank, world_size=100)
        store.set(f"p/0/ready/{rank}", "1")
    one = meeting(store, 0, world_size=100)
    one.claim("w0", HERE)
    one.exchange(record(0))
    one.barrier()
    assert store.questions < 20


# ---- open groups ----------------------------------------------------------------


def open_join(store: DictStore, name: str, **changes: Any) -> tuple[OpenGroup, Any]:
    group = OpenGroup(store, prefix="p")
    group.claim(name, me(0))
    mine = dataclasses.replace(
        me(group.rank), name=name, incarnation=group.rank + 7, **changes
    )
    return group, group.exchange(mine)


def test_b100_ranks_count_in_the_order_of_joining() -> None:
    store = DictStore()
    first, alone = open_join(store, "a")
    second, both = open_join(store, "b")
    assert (first.rank, second.rank) == (0, 1)
    assert [one.name for one in alone] == ["a"]
    assert [one.name for one in both] == ["a", "b"]
    first.leave()
    third, rest = open_join(store, "a")
    assert third.rank == 2
    assert [one.name for one in rest] == ["b", "a"]
    assert not third.is_published(alone[0])
    assert third.is_published(both[1])


def test_b99_a_name_that_is_in_use_is_refused() -> None:
    store = DictStore()
    open_join(store, "a", pid=os.getppid(), start_time=parent_start())
    with pytest.raises(rpcfut.DuplicateNameError, match="'a' is a member already"):
        open_join(store, "a")


def test_b100_a_name_of_one_that_ended_may_be_taken() -> None:
    store = DictStore()
    open_join(store, "a", start_time=1)
    group, _ = open_join(store, "a")
    assert store.get("p/open/name/a") == str(group.rank).encode()


def test_a_name_on_another_host_is_taken_for_now_and_given_back() -> None:
    """Nobody here can tell whether that one lives; the members will say."""
    store = DictStore()
    open_join(store, "a", host_id="elsewhere")
    group, found = open_join(store, "a")
    assert found[0].host_id == "elsewhere"
    group.withdraw()
    assert store.get("p/open/name/a") == b"0"
    assert store.get("p/open/member/1") == b""


def test_one_that_has_a_rank_but_no_record_yet_is_passed_over() -> None:
    """It will read ours."""
    store = DictStore()
    store.add("p/open/joined", 1)
    _, found = open_join(store, "b")
    assert [one.rank for one in found] == [1]


@pytest.mark.parametrize("raw", [b"{}", b"\xff", b"[" * 4000])
def test_a_malformed_record_of_an_open_group_is_refused(raw: bytes) -> None:
    store = DictStore()
    store.add("p/open/joined", 1)
    store.set("p/open/member/0", raw)
    with pytest.raises(rpcfut.RendezvousError, match="record of rank 0"):
        open_join(store, "b")


@pytest.mark.parametrize("count", [-5, 2**40])
def test_a_counter_that_makes_no_sense_is_refused(count: int) -> None:
    store = DictStore()
    store.set("p/open/joined", str(count))
    with pytest.raises(rpcfut.RendezvousError, match="gave out the rank"):
        open_join(store, "b")


def test_a_name_with_a_nonsensical_owner_may_be_taken() -> None:
    store = DictStore()
    store.set("p/open/name/a", "\x1b[2J")
    open_join(store, "a")
    assert store.get("p/open/name/a") == b"0"


# ---- each member its own store --------------------------------------------------


def spread(count: int) -> list[MemberStores]:
    """Stores of members that all run, at ports that are none."""
    own = [DictStore() for _ in range(count)]
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    addresses = [("127.0.0.1", port) for port in ports]

    def reach(_: str, port: int) -> DictStore:
        return own[ports.index(port)]

    stores = [MemberStores(own[rank], rank, addresses, reach) for rank in range(count)]
    for store in stores:
        store._store_of = lambda rank: own[rank]  # type: ignore[method-assign]
    return stores


def test_a_key_of_a_rank_lies_with_it() -> None:
    first, second = spread(2)
    assert not first.check(["p/member/1"])
    second.set("p/member/1", "x")
    assert first.check(["p/member/1"])
    assert first.get("p/member/1") == b"x"
    first.set("p/member/1", "y")
    assert second.get("p/member/1") == b"x", "nobody writes for another"


def test_a_key_of_nobody_is_found_with_anybody() -> None:
    first, second = spread(2)
    second.set("p/failed", "why")
    assert first.check(["p/failed"])
    assert first.get("p/failed") == b"why"
    assert first.multi_get(["p/failed"]) == [b"why"]
    with pytest.raises(RuntimeError, match="no member has the key"):
        first.get("p/other")


def test_a_member_that_does_not_listen_has_no_keys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    addresses = [("127.0.0.1", 1), ("127.0.0.1", port)]
    store = MemberStores(DictStore(), 0, addresses, lambda *_: DictStore())
    assert not store.check(["p/member/1"])


@pytest.mark.parametrize(
    ("init_method", "rank", "world_size", "text"),
    [
        ("peers://a:1,b:2", None, None, "lists 2 workers: pass rank="),
        ("peers://a:1,b:2", 2, None, "lists 2 workers: pass rank="),
        ("peers://a:1,b:2", 0, 3, "but world_size is 3"),
        ("peers://a:1,b", 0, None, "must list host:port of each rank"),
        ("peers://a:1,a:1", 0, None, "all different"),
        ("peers://", 0, None, "must list host:port"),
        ("peers://a:1,b:x", 0, None, "must list host:port"),
    ],
)
def test_a_list_of_peers_says_what_is_wrong_with_it(
    init_method: str, rank: int | None, world_size: int | None, text: str
) -> None:
    with pytest.raises(rpcfut.RendezvousError, match=text):
        open_meeting_place(init_method, rank, world_size, 1.0)


def test_without_rank_and_size_the_group_is_open(tmp_path: Path) -> None:
    place = open_meeting_place(f"file://{tmp_path}/x", None, None, 1.0)
    assert (place.rank, place.world_size) == (None, None)


def test_torchrun_starting_again_means_another_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefixes = set()
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        monkeypatch.delenv("MASTER_ADDR", raising=False)
        prefixes.add(open_meeting_place("env://", 0, 1, 1.0).prefix)
    assert len(prefixes) == 2
