"""Faults of joining, leaving and restarting."""

from __future__ import annotations

from tests.faults.fault import Fault

ROWS = (
    *("b83", "b84", "b95", "b96", "b97", "b98", "b99", "b100"),
    *("b103", "b104", "b105", "b106", "b107"),
)

SESSION = ("tests/procs/test_session.py",)
MEETING = ("tests/unit/test_rendezvous.py",)
MEMBERS = ("tests/unit/test_membership.py",)

AGENT = "rpcfut/_agent.py"
LEAVING = "rpcfut/_leaving.py"
MEMBERSHIP = "rpcfut/_membership.py"
RENDEZVOUS = "rpcfut/_rendezvous.py"
OPEN_GROUP = "rpcfut/_open_group.py"

FAULTS = [
    Fault(
        row="b83",
        what="a forked child waits for its parent's calls when it leaves",
        path=AGENT,
        old="if os.getpid() != self._pid:  # a forked",
        new="if os.getpid() < 0:  # a forked",
        tests=SESSION,
    ),
    Fault(
        row="b83",
        what="a forked child calls on its parent's sockets",
        path=AGENT,
        old="        if os.getpid() != self._pid:\n            raise",
        new="        if os.getpid() < 0:\n            raise",
        tests=SESSION,
    ),
    Fault(
        row="b84",
        what="a worker stops when its process forks",
        path=AGENT,
        old="        self._pid = os.getpid()\n",
        new="        self._pid = os.getpid()\n"
        "        os.register_at_fork(before=self.close)\n",
        tests=SESSION,
    ),
    Fault(
        row="b95",
        what="groups that start at once meet in one place",
        path="rpcfut/_store.py",
        old="dist.FileStore(path)",
        new='dist.FileStore(str(Path(path).parent / "meeting"))',
        tests=SESSION,
    ),
    Fault(
        row="b96",
        what="each look at the store asks for each rank",
        path=RENDEZVOUS,
        old="        while not self._store.check(keys):\n",
        new="        while not all([self._store.check([key]) for key in keys]):\n",
        tests=MEETING,
    ),
    Fault(
        row="b97",
        what="who is missing is not said",
        path=RENDEZVOUS,
        old='                    f"rank {names} of',
        new='                    f"someone of',
        tests=MEETING,
    ),
    Fault(
        row="b98",
        what="a group that was left is in the way of the next one",
        path=RENDEZVOUS,
        old='            self._store.set(self._key("left", self.rank), "1")\n',
        new="            pass\n",
        tests=SESSION,
    ),
    Fault(
        row="b99",
        what="two ranks may have one name",
        path=RENDEZVOUS,
        old="        if owner != mine:\n",
        new="        if not owner:\n",
        tests=MEETING,
        shows="DID NOT RAISE",
    ),
    Fault(
        row="b99",
        what="a rank is taken from a process that runs",
        path=RENDEZVOUS,
        old="        if me.sees_pids_of(earlier) and not",
        new="        if not me.sees_pids_of(earlier) and not",
        tests=MEETING,
        shows="DID NOT RAISE",
    ),
    Fault(
        row="b99",
        what="two workers of an open group may have one name",
        path=OPEN_GROUP,
        old="        if me.sees_pids_of(record):\n",
        new="        if not me.sees_pids_of(record):\n",
        tests=(*MEETING, *MEMBERS),
        shows="DID NOT RAISE",
    ),
    Fault(
        row="b99",
        what="an unknown worker is compared with none that is known",
        path="rpcfut/_workers.py",
        old='            text += f"; did you mean {close[0]!r}?" if close else ""\n',
        new="",
        tests=MEMBERS,
    ),
    Fault(
        row="b100",
        what="a member does not take up who introduces itself",
        path=MEMBERSHIP,
        old="                self._admit(record)\n",
        new="                pass\n",
        tests=MEMBERS,
        shows="MissingWorkersError",
    ),
    Fault(
        row="b100",
        what="a joiner does not wait for the answers",
        path=MEMBERSHIP,
        old="        waits_for = [r for r in records if self._calls_on(r)]\n",
        new="        waits_for = [r for r in records if self._calls_on(r)][:0]\n",
        tests=MEMBERS,
        shows="AssertionError|assert |UnknownWorkerError",
    ),
    Fault(
        row="b100",
        what="a rank that returns waits for the others to come, too",
        path=RENDEZVOUS,
        old='        self._earlier = raw or b""\n',
        new="        self._earlier = raw and None\n",
        tests=MEETING,
    ),
    Fault(
        row="b100",
        what="who ended is there until its parent looks after it",
        path="transport/rpcfut_transport/_peers.py",
        old="            return is_other or bool(poller.poll(0))\n",
        new="            return is_other\n",
        tests=MEETING,
    ),
    Fault(
        row="b103",
        what="one that was killed is waited for",
        path=AGENT,
        old='        """Take note that a peer died. Reader or liveness thread."""\n',
        new="        return\n",
        tests=SESSION,
        shows="AssertionError|assert |ValueError",
    ),
    Fault(
        row="b104",
        what="stopping takes as long as it always does",
        path=LEAVING,
        old="        deadline_s = None if timeout_s is None else",
        new="        timeout_s = 2.0\n        deadline_s =",
        tests=SESSION,
    ),
    Fault(
        row="b105",
        what="the end of the process is an error",
        path=AGENT,
        old="        self._close(self._blind)\n",
        new="        os._exit(1)\n",
        tests=SESSION,
    ),
    Fault(
        row="b106",
        what="a helper does not see its parent end",
        path="rpcfut/testing/_processes.py",
        old="        os._exit(1)\n",
        new="        return\n",
        tests=SESSION,
    ),
    Fault(
        row="b107",
        what="one that leaves does not say so",
        path=AGENT,
        old="                self._endpoint.send_notice(rank, Kind.GOODBYE)\n",
        new="                pass\n",
        tests=SESSION,
    ),
    Fault(
        row="b107",
        what="one that says goodbye still lets others join",
        path=MEMBERSHIP,
        old="            self._has_ended = True\n",
        new="            pass\n",
        tests=MEMBERS,
    ),
]
