"""Faults of streams, memory and extractors."""

from __future__ import annotations

from tests.faults.fault import Fault

ROWS = ("b40", "b43", "b44", "b45", "b46", "b47", "b51", "b52", "b53", "b54")

STREAMS = "rpcfut/_streams.py"
TESTS = ("tests/unit/test_field_reports_streams.py",)
GPU_TESTS = ("tests/gpu/test_rules_on_cuda.py",)

FAULTS = [
    Fault(
        row="b40",
        what="a child holds its parent",
        path="rpcfut/_future.py",
        old="        child._leader = weakref.ref(self)\n",
        new="        child._leader = lambda: self\n",
        tests=TESTS,
    ),
    Fault(
        row="b40",
        what="idle threads hold what they ran last",
        path="rpcfut/_pool.py",
        old="            task = None  # do not keep its value alive while idle\n",
        new="",
        tests=TESTS,
    ),
    Fault(
        row="b43",
        what="only declared devices get events",
        path="rpcfut/_completion.py",
        old="(Value(value), record(refs), refs))\n",
        new="(Value(value), record(refs) if devices else (), refs))\n",
        tests=TESTS,
    ),
    Fault(
        row="b43",
        what="a future that was made for the host takes device values",
        path="rpcfut/_completion.py",
        old="        if not used <= devices:\n",
        new="        if devices and not used <= devices and len(devices) > 1:\n",
        tests=TESTS,
    ),
    Fault(
        row="b44",
        what="a returned future's own events are dropped",
        path="rpcfut/_future_core.py",
        old="lambda leader: completion_of_done(leader, marks))\n",
        new="lambda f: completion_of_done(f)._replace(marks=marks))\n",
        tests=TESTS,
    ),
    Fault(
        row="b44",
        what="events are recorded on streams of the thread that reads",
        path=STREAMS,
        old="    return record_current(_devices_of(refs)) if refs else ()\n",
        new="    return ()\n",
        tests=TESTS,
    ),
    Fault(
        row="b44",
        what="an answer is encoded without waiting for the helper's events",
        path="rpcfut/_dispatch.py",
        old="            with own_streams(future) as scope:\n"
        "                try:\n"
        "                    prepared = answer.encode(future.value())\n",
        new="            with own_streams() as scope:\n"
        "                try:\n"
        "                    prepared = answer.encode(future._outcome.value)\n",
        tests=TESTS,
    ),
    Fault(
        row="b45",
        what="an answer leaves before its copies are made",
        path="rpcfut/_answer.py",
        old="Prepared(encoded, staging.marks())",
        new="Prepared(encoded, ())",
        tests=TESTS,
    ),
    Fault(
        row="b45",
        what="only devices of the parent get events",
        path=STREAMS,
        old="        for device in (*used_devices(), *_devices_of(refs)):\n"
        "            pair =",
        new="        for device in ():\n            pair =",
        tests=TESTS,
    ),
    Fault(
        row="b46",
        what="an unknown type is let through",
        path="rpcfut/_completion.py",
        old="        return Completion(failure_of(refusal), record(()))\n",
        new="        return Completion(Value(value))\n",
        tests=TESTS,
    ),
    Fault(
        row="b46",
        what="a type that was declared free of device data is refused",
        path="rpcfut/_registry.py",
        old="        kind, leaf, override=override,",
        new="        object, leaf, override=True,",
        tests=TESTS,
    ),
    Fault(
        row="b47",
        what="futures inside values are unknown",
        path="rpcfut/_future.py",
        old="register_builtin(Future)\n",
        new="",
        tests=TESTS,
        shows="ExtractionError",
    ),
    Fault(
        row="b47",
        what="values are pickled to look for tensors",
        path="rpcfut/_extract.py",
        old="        if types.is_audit and types.is_audited(kind):\n",
        new="        find_missed(part, types.has_extractor, lambda _: (), bool)\n"
        "        if types.is_audit and types.is_audited(kind):\n",
        tests=TESTS,
    ),
    Fault(
        row="b51",
        what="the allocator is not told who reads",
        path=STREAMS,
        old="            seam.keep_alive(ref, seam.current_stream(ref.device))\n",
        new="            pass\n",
        tests=TESTS,
    ),
    Fault(
        row="b51",
        what="the allocator is not told who copies an argument",
        path="rpcfut/_staging.py",
        old="            seam.keep_alive(ref, seam.current_stream(device))\n",
        new="            del ref\n",
        tests=TESTS,
    ),
    Fault(
        row="b51",
        what="the allocator is not told who reads",
        path=STREAMS,
        old="            seam.keep_alive(ref, seam.current_stream(ref.device))\n",
        new="            pass\n",
        tests=GPU_TESTS,
        on="gpu",
    ),
    Fault(
        row="b52",
        what="memory is let go while its readers' work is queued",
        path="rpcfut/_holding.py",
        old="        return not entry.events\n",
        new="        return True\n",
        tests=("tests/unit/test_holding.py",),
    ),
    Fault(
        row="b52",
        what="CuPy's memory is left to its pool",
        path="rpcfut/_cuda.py",
        old="            self._holding.hold(owner, stream)\n",
        new="            pass\n",
        tests=GPU_TESTS,
        on="gpu",
    ),
    Fault(
        row="b53",
        what="callbacks take streams on device 0, whatever device they are for",
        path=STREAMS,
        old="    in_play = (*[mark.device for mark in marks],",
        new="    in_play = (*[mark.device._replace(index=0) for mark in marks],",
        tests=TESTS,
    ),
    Fault(
        row="b54",
        what="a producer is asked to wait for a stream that nobody reads on",
        path="rpcfut/_memory.py",
        old="_DLPACK_NO_SYNC = -1\n",
        new="_DLPACK_NO_SYNC = None\n",
        tests=("tests/unit/test_extract_known.py",),
    ),
]
