"""FUT-5: an exception stays what it was, however often it is raised again."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from rpcfut import Future
from tests.support.threads import run_together

if TYPE_CHECKING:
    from types import TracebackType

TIMES = 1000


class _Looks(NamedTuple):
    """All that a reader can see of an exception."""

    error: BaseException
    args: tuple[Any, ...]
    notes: list[str]
    cause: BaseException | None
    context: BaseException | None
    is_context_hidden: bool
    frames: int


def _looks(error: BaseException) -> _Looks:
    return _Looks(
        error,
        error.args,
        list(getattr(error, "__notes__", [])),
        error.__cause__,
        error.__context__,
        error.__suppress_context__,
        _length(error.__traceback__),
    )


def _length(tb: TracebackType | None) -> int:
    return len(list(traceback.walk_tb(tb)))


def _full_error() -> ValueError:
    """An error with a traceback, a cause, a context and a note."""
    try:
        try:
            _throw(KeyError("context"))
        except KeyError:
            raise ValueError("text", 7) from OSError("cause")
    except ValueError as error:
        error.add_note("a note")
        return error


def _catch(future: Future[Any]) -> BaseException:
    try:
        future.wait(10)
    except ValueError as error:
        return error
    raise AssertionError("it had a value")


def test_a_thousand_raises_change_nothing() -> None:
    """Type, args, notes, cause, context and traceback stay; nothing grows."""
    error = _full_error()
    future: Future[int] = Future()
    future.set_exception(error)
    first = _looks(_catch(future))
    for _ in range(TIMES):
        last = _looks(_catch(future))
    assert last == first
    assert last.error is error
    assert last.args == ("text", 7)
    assert last.notes == ["a note"]
    assert isinstance(last.cause, OSError)
    assert isinstance(last.context, KeyError)


def test_the_traceback_shows_where_it_was_raised_first() -> None:
    """The reader's frames come on top of the original ones."""
    future: Future[int] = Future()
    future.set_exception(_full_error())
    names = [frame.name for frame in traceback.extract_tb(_catch(future).__traceback__)]
    assert names[0] == "_catch"
    assert names[-1] == "_full_error"


def test_a_chain_of_a_thousand_callbacks_adds_no_frame() -> None:
    """The last child's error looks as the first one's."""
    first: Future[int] = Future()
    last = first
    for _ in range(TIMES):
        last = last.then(lambda f: f.value())
    first.set_exception(_full_error())
    assert _looks(_catch(last)) == _looks(_catch(first))


def test_raising_inside_another_handler_leaves_the_context_alone() -> None:
    """Python would set `__context__` to what the reader handles just now."""
    error = _full_error()
    context = error.__context__
    future: Future[int] = Future()
    future.set_exception(error)
    for _ in range(10):
        try:
            _throw(IndexError("unrelated"))
        except IndexError:
            assert _catch(future).__context__ is context
    assert error.__context__ is context


def test_an_error_without_a_context_gets_none() -> None:
    """Nor does a chain started inside a handler give it one."""
    future: Future[int] = Future()
    child = future.then(lambda f: f.value())
    error = ValueError("plain")
    try:
        _throw(IndexError("unrelated"))
    except IndexError:
        future.set_exception(error)
        assert _catch(child) is error
    assert error.__context__ is None


def test_two_threads_that_raise_it_at_once_leave_it_as_it_was() -> None:
    """What one thread handles just now is not taken for the error's own context."""
    error = _full_error()
    context = error.__context__
    future: Future[int] = Future()
    future.set_exception(error)

    def read() -> None:
        for _ in range(TIMES):
            try:
                _throw(IndexError())
            except IndexError:
                _catch(future)

    assert run_together(read, read, read, read) == [None] * 4
    assert error.__context__ is context


def test_the_context_is_not_read_while_somebody_raises() -> None:
    """A second raise inside the first one's handler puts the true context back."""
    error = _full_error()
    context = error.__context__
    future: Future[int] = Future()
    future.set_exception(error)
    try:
        future.wait()
    except ValueError:
        error.__context__ = IndexError("as in the middle of another thread's raise")
        _catch(future)
    assert error.__context__ is context


def test_a_callbacks_own_error_keeps_its_chain() -> None:
    """`raise ... from` inside a callback arrives as it was written."""
    parent: Future[int] = Future()

    def translate(f: Future[int]) -> None:
        try:
            f.value()
        except ValueError as error:
            raise LookupError("translated") from error

    child = parent.then(translate)
    original = _full_error()
    parent.set_exception(original)
    error = child.exception(10)
    assert isinstance(error, LookupError)
    assert error.__cause__ is error.__context__ is original
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[-1] == "translate"


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_stop_iteration_is_wrapped(kind: type[Exception]) -> None:
    """Raised out of `__await__` it would end the awaiting coroutine as a return."""
    error = kind("inner")
    given: Future[int] = Future()
    given.set_exception(error)
    source: Future[int] = Future()
    raised = source.then(lambda _: _throw(error))
    source.set_result(1)
    for future in (given, raised):
        with pytest.raises(RuntimeError, match=kind.__name__) as caught:
            future.wait(10)
        assert caught.value.__cause__ is error


def _throw(error: BaseException) -> None:
    raise error


def test_awaiting_a_stop_iteration_does_not_hang() -> None:
    """The coroutine gets a RuntimeError."""
    future: Future[int] = Future()

    async def main() -> str:
        threading.Thread(target=lambda: future.set_exception(StopIteration())).start()
        try:
            await asyncio.wait_for(asyncio.ensure_future(_wait(future)), 10)
        except RuntimeError as error:
            return str(error)
        return "no error"

    assert "StopIteration" in asyncio.run(main())


async def _wait(future: Future[int]) -> int:
    return await future


def test_base_exceptions_pass_through_as_they_are() -> None:
    """SystemExit and the like are errors of the child as any other."""
    source: Future[int] = Future()
    child = source.then(lambda _: _throw(SystemExit(3)))
    source.set_result(1)
    with pytest.raises(SystemExit):
        child.wait(10)


def test_each_reader_of_a_cancelled_future_gets_its_own_error() -> None:
    """There is no shared object whose traceback could grow."""
    future: Future[int] = Future()
    future.cancel()
    errors = []
    for _ in range(2):
        with pytest.raises(concurrent.futures.CancelledError) as caught:
            future.wait()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
