"""Mutants: patches of a few lines that each take out one rule's synchronisation.

``python -m tests.rules.mutants`` puts each into a copy of the tree, runs the tests of
the rules on the simulated device, and prints a table; with ``--gpu`` those on a real
GPU. A mutant is caught when a test of its own rule fails by a `RaceError` or a wrong
value; on the GPU one must have been wrong in every round. It fails if one survives.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass

from tests.support.patching import Patch, Report, copied_tree, run_tests

SIM_TESTS = ("tests/rules/test_rules_on_sim.py", "tests/rules/test_calls_on_sim.py")
GPU_TESTS = (
    "tests/gpu/test_rules_on_cuda.py",
    "tests/gpu/test_call_rules_on_cuda.py",
    "tests/gpu/test_backward_on_cuda.py",
)
# How a missing edge shows; anything else, a time-out for one, catches nothing.
RACE = re.compile(r"RaceError|UseAfterFreeError|AssertionError|assert ")
ALL_ROUNDS = re.compile(r"wrong in (\d+) of (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant(Patch):
    """One patch.

    Args:
        rule: The rule that it breaks, as in the names of its tests.
        on: Where its rule can be broken: ``sim``, ``gpu`` or both.
    """

    rule: str
    on: tuple[str, ...] = ("sim", "gpu")


MUTANTS = [
    Mutant(
        rule="str1",
        what="no event at completion",
        path="rpcfut/_streams.py",
        old="    return record_current(_devices_of(refs)) if refs else ()\n",
        new="    return ()\n",
    ),
    Mutant(
        rule="str2",
        what="readers do not wait",
        path="rpcfut/_future_core.py",
        old="            wait_marks(self._marks, self._refs)\n",
        new="            wait_marks((), self._refs)\n",
    ),
    Mutant(
        rule="str2",
        what="the allocator is not told who reads",
        path="rpcfut/_future_core.py",
        old="            wait_marks(self._marks, self._refs)\n",
        new="            wait_marks(self._marks, ())\n",
    ),
    Mutant(
        rule="str3",
        what="callbacks do not wait for their parent",
        path="rpcfut/_callback.py",
        old="            marks=(*marks, *self.marks),\n",
        new="            marks=self.marks,\n",
    ),
    Mutant(
        rule="str3",
        what="callbacks do not wait for the registering streams",
        path="rpcfut/_callback.py",
        old="            marks=(*marks, *self.marks),\n",
        new="            marks=marks,\n",
    ),
    Mutant(
        rule="str3",
        what="callbacks on one stream do not take turns",
        path="rpcfut/_lanes.py",
        old="            if self._is_first_locked(ticket):\n"
        "                return True\n",
        new="            return True\n",
    ),
    Mutant(
        rule="str4",
        what="only the given streams count, not the current one",
        path="rpcfut/_streams.py",
        old="        for device in (*used_devices(), *_devices_of(refs)):\n"
        "            pair =",
        new="        for device in ():\n            pair =",
    ),
    Mutant(
        rule="str5",
        what="no events for what returned nothing",
        path="rpcfut/_streams.py",
        old="        streams = list(self._given.items())\n",
        new="        streams = list(self._given.items())\n"
        "        if not refs:\n            return ()\n",
    ),
    Mutant(
        rule="str6",
        what="an unknown type is let through",
        path="rpcfut/_completion.py",
        old="        return Completion(failure_of(refusal), record(()))\n",
        new="        return Completion(Value(value))\n",
    ),
    Mutant(
        rule="str7",
        what="events only on declared devices",
        path="rpcfut/_completion.py",
        old="(Value(value), record(refs), refs))\n",
        new="(Value(value), record(refs) if devices else (), refs))\n",
    ),
    Mutant(
        rule="str8",
        what="arguments are copied on a stream of their own",
        path="rpcfut/_staging.py",
        old="        return seam.copy_to_host(source)\n",
        new="        from rpcfut._callbacks import runtime\n"
        "        own = {device: runtime().streams.lease(device)[0]}\n"
        "        undo = seam.make_current(own, None)\n"
        "        copy, _ = seam.copy_to_host(source), undo()\n"
        "        return copy\n",
    ),
    Mutant(
        rule="str8",
        what="calls leave before their arguments are copied",
        path="rpcfut/_calling.py",
        old="        marks = staging.marks()\n",
        new="        marks = ()\n",
    ),
    Mutant(
        rule="str9",
        what="functions run on other streams than the unpacking",
        path="rpcfut/_dispatch.py",
        old="            result = exposed.function(*args, **kwargs)\n",
        new="            with own_streams():\n"
        "                result = exposed.function(*args, **kwargs)\n",
    ),
    Mutant(
        rule="str9",
        what="functions do not wait for the streams of expose",
        path="rpcfut/_dispatch.py",
        old="scope.follow((*exposed.marks, *before))",
        new="scope.follow(before)",
    ),
    Mutant(
        rule="str9",
        what="functions do not wait for the streams of init_rpc",
        path="rpcfut/_agent.py",
        old="        self._dispatcher.order.join(record_in_use(()))\n",
        new="",
    ),
    Mutant(
        rule="str9",
        what="answers leave before their results are copied",
        path="rpcfut/_answer.py",
        old="Prepared(encoded, staging.marks())",
        new="Prepared(encoded, ())",
    ),
    Mutant(
        rule="str9",
        what="no events behind what a caller unpacks",
        path="rpcfut/_reply.py",
        old="completion_of(value, None, self._origin, scope.record)",
        new="completion_of(value, None, self._origin, lambda _: ())",
    ),
    Mutant(
        rule="str10",
        what="the pass does not wait for the caller's streams",
        path="rpcfut/_handover.py",
        old="find_site(), record_in_use(reads)",
        new="find_site(), ()",
    ),
    Mutant(
        rule="str10",
        what="no events on the streams of the pass",
        path="rpcfut/_handover.py",
        old="        return _call(work, scope.record)\n",
        new="        return _call(work, lambda refs: ())\n",
    ),
    Mutant(
        rule="str10",
        what="the allocator is not told who reads the gradients",
        path="rpcfut/_handover.py",
        old="_replace(outcome=Value(made.value))\n",
        new="_replace(outcome=Value(made.value), refs=())\n",
    ),
    Mutant(
        rule="str11",
        what="the allocator is not told who copies an argument",
        path="rpcfut/_staging.py",
        old="            seam.keep_alive(ref, seam.current_stream(device))\n",
        new="            del ref\n",
    ),
    Mutant(
        rule="str11",
        what="the allocator is told of no reader at all",
        path="rpcfut/_streams.py",
        old="            seam.keep_alive(ref, seam.current_stream(ref.device))\n",
        new="            pass\n",
    ),
    Mutant(
        rule="str12",
        what="pool streams are never used again",
        path="rpcfut/_stream_pool.py",
        old="            if free:\n",
        new="            if False:\n",
    ),
    Mutant(
        rule="str12",
        what="events on declared devices that hold nothing",
        path="rpcfut/_completion.py",
        old="(Value(value), record(refs), refs))\n    return made\n",
        new="(Value(value), record(refs), refs))\n"
        "    from rpcfut._streams import record_current\n"
        "    more = record_current(devices or ())\n"
        "    return made._replace(marks=(*made.marks, *more))\n",
        on=("sim",),
    ),
    Mutant(
        rule="str13",
        what="functions do not wait for the calls answered before",
        path="rpcfut/_dispatch.py",
        old="before = order.marks() if order is not None else",
        new="before =",
    ),
    Mutant(
        rule="str13",
        what="what a function launched is not noted",
        path="rpcfut/_dispatch.py",
        old="                order.note(launched)\n",
        new="                del launched\n",
    ),
    Mutant(
        rule="str13",
        what="what a returned future's work launched is not noted",
        path="rpcfut/_dispatch.py",
        old="                        order.note(scope.record(()))\n",
        new="                        pass\n",
        on=("sim",),
    ),
    Mutant(
        rule="str14",
        what="captured streams are not refused",
        path="rpcfut/_capture.py",
        old="        if seam_of(device).is_capturing(device):\n",
        new="        if False:\n",
    ),
]


@dataclass(frozen=True, slots=True)
class Result:
    """What the tests said about a mutant."""

    own: dict[str, str]  # failed tests of its own rule, and how
    others: list[str]  # rules whose tests failed as well

    def verdict(self, *, on_gpu: bool) -> str:
        """Empty when it was caught, else why not."""
        if not self.own:
            return "SURVIVED"
        if not any(RACE.search(text) for text in self.own.values()):
            return "FAILED BY ANOTHER ERROR"
        counts = list(filter(None, map(ALL_ROUNDS.search, self.own.values())))
        if on_gpu and counts and all(found[1] != found[2] for found in counts):
            return f"ONLY {counts[0][0]}".upper()
        return ""


def try_mutant(mutant: Mutant, *, on_gpu: bool) -> Result:
    """Put a mutant into a copy of the tree and run the tests of the rules."""
    with copied_tree(mutant) as tree:
        if not on_gpu:
            return _result(mutant, run_tests(tree, SIM_TESTS))
        # On a GPU each test costs seconds: the rule's own only, and first of all one.
        own = f"{mutant.rule}_"
        result = _result(mutant, run_tests(tree, GPU_TESTS, own, max_failures=1))
        if result.own and result.verdict(on_gpu=True):
            result = _result(mutant, run_tests(tree, GPU_TESTS, own))
        return result


def _result(mutant: Mutant, report: Report) -> Result:
    failed = report.failed
    prefix = f"test_{mutant.rule}_"
    own = {name: text for name, text in failed.items() if name.startswith(prefix)}
    rules = {name.split("_")[1] for name in failed if name not in own}
    return Result(own, sorted(rules))


def main() -> None:
    """Try all mutants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="on a real GPU")
    parser.add_argument("--only", help="a rule, as in str3")
    options = parser.parse_args()
    place = "gpu" if options.gpu else "sim"
    with copied_tree() as tree:
        clean = run_tests(tree, GPU_TESTS if options.gpu else SIM_TESTS)
    if clean.failed:
        sys.exit(f"without a mutant these fail already: {sorted(clean.failed)}")
    print(f"{'rule':6} {place:>4}  {'tests':>5}  {'also fail':18} what is missing")
    survived = 0
    for mutant in MUTANTS:
        if place not in mutant.on or options.only not in {None, mutant.rule}:
            continue
        result = try_mutant(mutant, on_gpu=options.gpu)
        verdict = result.verdict(on_gpu=options.gpu)
        survived += bool(verdict)
        others = " ".join(result.others) or ("(not run)" if options.gpu else "-")
        caught = verdict or "ok"
        print(
            f"{mutant.rule:6} {caught:>4}  {len(result.own):5}  {others:18} "
            f"{mutant.what}",
            flush=True,
        )
    sys.exit(f"{survived} mutants were not caught" if survived else 0)


if __name__ == "__main__":
    main()
