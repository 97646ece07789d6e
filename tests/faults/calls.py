"""Faults of calls: errors that travel, deadlines, handlers, values and tensors."""

# ruff: noqa: E501 - the lines of other modules

from __future__ import annotations

from tests.faults.fault import Fault

ROWS = (
    *(
        "b06",
        "b07",
        "b09",
        "b13",
        "b14",
        "b15",
        "b16",
        "b17",
        "b18",
        "b19",
        "b20",
        "b21",
    ),
    *("b22", "b23", "b24", "b25", "b38", "b41", "b48", "b49", "b50", "b55", "b56"),
    *("b59", "b60", "b61", "b62", "b63", "b64", "b65", "b66", "b67", "b68", "b70"),
    *("b73", "b74", "b75", "b76", "b77", "b78", "b124", "b125", "b126", "b129"),
    "b134",
)

ERRORS = ("tests/unit/test_field_reports_errors.py",)
VALUES = ("tests/unit/test_field_reports_values.py",)
CALLS = ("tests/unit/test_field_reports_calls.py",)
ENDING = ("tests/unit/test_ending.py",)
HANDLERS = ("tests/unit/test_handlers.py",)
CALLED = ("tests/unit/test_field_reports_handlers.py",)
PLACEMENT = ("tests/unit/test_placement.py",)
MANY = ("tests/unit/test_many.py",)

DISPATCH = "rpcfut/_dispatch.py"
ANSWER = "rpcfut/_answer.py"
WRITE_ERROR = "rpcfut/_error_encode.py"
READ_ERROR = "rpcfut/_error_decode.py"
WRITER = "rpcfut/_tensor_writer.py"
READER = "rpcfut/_tensor_reader.py"

FAULTS = [
    Fault(
        row="b06",
        what="a failure before the function is called is not answered",
        path=DISPATCH,
        old="            answer.fail(error)\n        finally:\n            if not follows:\n",
        new="            if served.function:\n                answer.fail(error)\n"
        "        finally:\n            if not follows:\n",
        tests=ERRORS,
    ),
    Fault(
        row="b07",
        what="a body that is no call ends the thread without an answer",
        path=DISPATCH,
        old='                raise DecodeError("a call must be [name, args, kwargs]")\n',
        new="                raise SystemExit\n",
        tests=ERRORS,
    ),
    Fault(
        row="b09",
        what="a result that does not travel is tried a second time",
        path=DISPATCH,
        old="            result = exposed.function(*args, **kwargs)\n",
        new="            result = exposed.function(*args, **kwargs)\n"
        "            exposed.function(*args, **kwargs)\n",
        tests=ERRORS,
    ),
    Fault(
        row="b13",
        what="an unknown exception arrives without its words",
        path=READ_ERROR,
        old='            text=clean(said["text"], _RECEIVED_TEXT),\n',
        new='            text="",\n',
        tests=ERRORS,
    ),
    Fault(
        row="b14",
        what="a registered exception that cannot be made hides what happened",
        path=READ_ERROR,
        old='            self._fields["hint"] = f"{problem}"\n            return None\n',
        new="            return TypeError(str(problem))\n",
        tests=ERRORS,
    ),
    Fault(
        row="b15",
        what="an argument that cannot travel breaks the error",
        path=WRITE_ERROR,
        old="    return body if body is not None else room.text(text, limit)\n",
        new="    return body if body is not None else arg\n",
        tests=ERRORS,
    ),
    Fault(
        row="b16",
        what="the text form does not travel",
        path=WRITE_ERROR,
        old='        "text": room.text(ask(lambda: str(error), "<its __str__ raised>")),\n',
        new='        "text": "",\n',
        tests=ERRORS,
    ),
    Fault(
        row="b17",
        what="a result that cannot travel is not answered",
        path=DISPATCH,
        old="            answer.fail(error)\n        finally:\n            if not follows:\n",
        new='            if type(error).__name__ != "EncodeError":\n'
        "                answer.fail(error)\n"
        "        finally:\n            if not follows:\n",
        tests=ERRORS,
    ),
    Fault(
        row="b18",
        what="causes are dropped",
        path=WRITE_ERROR,
        old='        "cause": later(own(error, "__cause__")),\n',
        new='        "cause": None,\n',
        tests=ERRORS,
    ),
    Fault(
        row="b19",
        what="the error does not say where the call was made",
        path=READ_ERROR,
        old='        called = f", called at {self.site}" if self.site else ""\n',
        new='        called = ""\n',
        tests=ERRORS,
    ),
    Fault(
        row="b20",
        what="a worker does not answer its own calls with errors",
        path=ANSWER,
        old="        self._send(body, (), is_error=True)\n        if failure",
        new="        if self._served.caller != self._worker:\n"
        "            self._send(body, (), is_error=True)\n        if failure",
        tests=ERRORS,
    ),
    Fault(
        row="b21",
        what="built-in exceptions do not come back as themselves",
        path=READ_ERROR,
        old="        if kind is None or state is None:\n",
        new='        if kind is None or kind.__module__ == "builtins" or not state:\n',
        tests=ERRORS,
    ),
    Fault(
        row="b22",
        what="the remote traceback is stuffed into the arguments",
        path=READ_ERROR,
        old='            _note(error, f"{TRACEBACK_NOTE} ({self._place}):\\n{there}".rstrip())\n',
        new="            error.args = (*error.args, there)\n",
        tests=ERRORS,
    ),
    Fault(
        row="b23",
        what="a function that is not there is looked up by attribute",
        path="rpcfut/_exposed.py",
        old="        if entry is not None:\n            return entry\n        shown",
        new="        entry = entry or next(iter(self._functions.values()), None)\n"
        "        if entry is not None:\n            return entry\n        shown",
        tests=ERRORS,
    ),
    Fault(
        row="b24",
        what="functions are sent by whatever name they have",
        path="rpcfut/_calling.py",
        old="        name = self._exposed.name_of(function)\n",
        new='        name = getattr(function, "__qualname__", function)\n',
        tests=ERRORS,
    ),
    Fault(
        row="b25",
        what="a returned future is not followed",
        path=DISPATCH,
        old="            if not isinstance(result, Future):\n",
        new="            if True:\n",
        tests=ERRORS,
    ),
    Fault(
        row="b20",
        what="the error of a future that a function returned is answered as a value",
        path=DISPATCH,
        old="answer.encode(future.value())",
        new="answer.encode(str(future.exception()) or future.value())",
        tests=CALLED,
    ),
    Fault(
        row="b23",
        what="a name that is no path is taken for one, whatever it holds",
        path="rpcfut/_exposed.py",
        old="    is_path = all(",
        new="    is_path = bool(qualname) or all(",
        tests=CALLED,
    ),
    Fault(
        row="b24",
        what="generators are sent by their names",
        path="rpcfut/_function_names.py",
        old="    refuse_generator(function)\n    torch_name",
        new="    torch_name",
        tests=CALLED,
    ),
    Fault(
        row="b25",
        what="a returned future is followed by the thread that ran the function",
        path=DISPATCH,
        old="        add_hook(future, lambda _future, _where: _callbacks.run_on_pool(follow))\n",
        new="        future.exception()\n        follow()\n",
        tests=CALLED,
        shows="PoolExhaustedError",
    ),
    Fault(
        row="b25",
        what="a future of another library is refused without the way out",
        path="rpcfut/_known_types.py",
        old="        lambda kind: issubclass(kind, _FUTURES),\n",
        new="        lambda kind: False,\n",
        tests=CALLED,
    ),
    Fault(
        row="b38",
        what="giving a call up drops the one after it",
        path="transport/rpcfut_transport/_session.py",
        old="        call = self._calls.pop(call_id, None)\n        if call is None:\n"
        "            return False\n",
        new="        call = self._calls.pop(call_id, None)\n        if call is None:\n"
        "            return False\n        self._calls.pop(call_id + 1, None)\n",
        tests=CALLS,
    ),
    Fault(
        row="b41",
        what="late answers are not counted",
        path="transport/rpcfut_transport/_session.py",
        old="            self.late_replies += 1\n",
        new="            pass\n",
        tests=ENDING,
    ),
    Fault(
        row="b48",
        what="answers leave before their results are copied",
        path=ANSWER,
        old="Prepared(encoded, staging.marks())",
        new="Prepared(encoded, ())",
        tests=CALLS,
    ),
    Fault(
        row="b49",
        what="functions do not wait for the calls answered before",
        path=DISPATCH,
        old="before = order.marks() if order is not None else",
        new="before =",
        tests=CALLS,
    ),
    Fault(
        row="b50",
        what="a call waits for whatever its caller's streams have queued",
        path="rpcfut/_calling.py",
        old="        marks = staging.marks()\n",
        new="        from rpcfut._streams import record_in_use\n"
        "        marks = record_in_use(())\n",
        tests=CALLS,
    ),
    Fault(
        row="b55",
        what="maps are not checked at init",
        path="rpcfut/_placement.py",
        old="                _check(one, other, pairs, counts, maps)\n",
        new="                pass\n",
        tests=PLACEMENT,
    ),
    Fault(
        row="b56",
        what="the policy of a worker without a GPU is ignored",
        path="rpcfut/_placement.py",
        old='        if self._policy == "cpu" and here.type == "cuda":\n',
        new="        if False:\n",
        tests=PLACEMENT,
        shows="DecodeError",
    ),
    Fault(
        row="b59",
        what="tensors with gaps are sent as if they had none",
        path=WRITER,
        old="                    self._gapped.add(number)\n",
        new="                    pass\n",
        tests=CALLS,
    ),
    Fault(
        row="b60",
        what="bfloat16 travels as float32",
        path=WRITER,
        old="        original, device = tensor, 0\n",
        new="        original, device = tensor, 0\n"
        "        if tensor.dtype is torch.bfloat16:\n"
        "            tensor = tensor.float()\n",
        tests=CALLS,
    ),
    Fault(
        row="b61",
        what="a float8 type has no number",
        path="rpcfut/_dtypes.py",
        old='"float8_e8m0fnu", ',
        new='"float8_unknown", ',
        tests=CALLS,
        shows=r"AssertionError|assert |EncodeError",
    ),
    Fault(
        row="b62",
        what="conjugated views arrive as what lies below them",
        path=READER,
        old="    if flags & CONJUGATE:\n        tensor =",
        new="    if False:\n        tensor =",
        tests=CALLS,
    ),
    Fault(
        row="b63",
        what="a tensor without dimensions gets one",
        path=READER,
        old="    return tensor if len(shape) == 1 else tensor.resize_(shape)\n",
        new="    return tensor.resize_(shape) if len(shape) > 1 else tensor\n",
        tests=CALLS,
    ),
    Fault(
        row="b64",
        what="empty tensors lose their shape",
        path=READER,
        old="        return empty.resize_(shape)\n",
        new="        return empty\n",
        tests=CALLS,
    ),
    Fault(
        row="b65",
        what="a slice ships its storage",
        path=WRITER,
        old="        original, device = tensor, 0\n",
        new="        original, device = tensor, 0\n"
        "        tensor = tensor.new_empty(0).set_(tensor.untyped_storage())\n",
        tests=CALLS,
    ),
    Fault(
        row="b66",
        what="tensors that share memory are sent twice",
        path=WRITER,
        old="        hulls = self._hulls() if len(self._tensors) > 1 else []\n",
        new="        hulls: list[_Hull] = []\n",
        tests=CALLS,
    ),
    Fault(
        row="b67",
        what="sparse tensors arrive coalesced, whatever they were",
        path="rpcfut/_tensor_layouts.py",
        old="is_coalesced=",
        new="is_coalesced=True or ",
        tests=CALLS,
        shows="DecodeError",
    ),
    Fault(
        row="b68",
        what="what needs gradients arrives without",
        path=READER,
        old="    return tensor.requires_grad_() if needs_grad else tensor\n",
        new="    return tensor\n",
        tests=CALLS,
    ),
    Fault(
        row="b70",
        what="long bytes go through msgpack",
        path="rpcfut/_encode.py",
        old="<= INLINE_NBYTES",
        new="<= 1 << 40",
        tests=VALUES,
        shows="EncodeError",
    ),
    Fault(
        row="b73",
        what="keys become texts",
        path="rpcfut/_wire_types.py",
        old="    return [part for pair in value.items() for part in pair]\n",
        new="    return [p for k, v in value.items() for p in (str(k), v)]\n",
        tests=VALUES,
    ),
    Fault(
        row="b74",
        what="tuples arrive as lists",
        path="rpcfut/_wire_types.py",
        old="    tuple: Compound(Code.TUPLE, tuple, tuple),\n",
        new="    tuple: Compound(Code.TUPLE, tuple, list),\n",
        tests=VALUES,
    ),
    Fault(
        row="b75",
        what="integers lose what does not fit nine bytes",
        path="rpcfut/_wire_types.py",
        old="int.from_bytes(data,",
        new="int.from_bytes(data[-9:],",
        tests=VALUES,
    ),
    Fault(
        row="b76",
        what="the sender allows more levels than the receiver",
        path="rpcfut/_encode.py",
        old="MAX_DEPTH + outer_depth",
        new="10 * MAX_DEPTH + outer_depth",
        tests=VALUES,
    ),
    Fault(
        row="b77",
        what="memory is taken before a claim is checked",
        path="rpcfut/_decode.py",
        old="    nbytes = memoryview(body).nbytes\n    options: dict",
        new="    bytearray(1 << 32)\n    nbytes = memoryview(body).nbytes\n    options: dict",
        tests=VALUES,
    ),
    Fault(
        row="b78",
        what="all encoders share their buffers",
        path="rpcfut/_encode.py",
        old="        self.buffers: list[Buffer] = []\n",
        new="        self.buffers = _SHARED\n",
        tests=VALUES,
        shows=r"AssertionError|assert |Error",
    ),
    Fault(
        row="b124",
        what="a wait in a function is refused though threads may be added",
        path="rpcfut/_pool.py",
        old="            if self._threads >= self._max and",
        new="            if self._threads >= self._core and",
        tests=HANDLERS,
        shows="PoolExhaustedError",
    ),
    Fault(
        row="b125",
        what="a wait in a function is refused though threads may be added",
        path="rpcfut/_pool.py",
        old="            if self._threads >= self._max and",
        new="            if self._threads >= self._core and",
        tests=HANDLERS,
        shows="PoolExhaustedError",
    ),
    Fault(
        row="b126",
        what="a future in an argument is refused without the way out",
        path="rpcfut/_codec_text.py",
        old="wait for it",
        new="no",
        tests=VALUES,
    ),
    Fault(
        row="b129",
        what="arguments are encoded for each worker",
        path="rpcfut/_calling.py",
        old="        return [self._open(w, about, request, marks, limit) for w in workers]\n",
        new="        return [self._open(w, about, _encode_request(\n"
        "            name, args, kwargs, staging, about), marks, limit) for w in workers]\n",
        tests=MANY,
    ),
    Fault(
        row="b134",
        what="calls are sent twice",
        path="transport/rpcfut_transport/_endpoint.py",
        old="            is_sent = self._sender.send(call.rank, header, body, buffers)\n",
        new="            self._sender.send(call.rank, header, body, buffers)\n"
        "            is_sent = self._sender.send(call.rank, header, body, buffers)\n",
        tests=CALLS,
    ),
]
