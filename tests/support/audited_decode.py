"""Decodes what a stranger may send, and watches what the interpreter does meanwhile.

``python -m tests.support.audited_decode N`` decodes N damaged copies of each value of
the wire table, and hand-made bodies that name what a stranger would like to reach. It
prints how many bodies decoded and how many were refused, and fails if one led to
an import, a file, a process, compiled code or a pickle.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import msgpack

import rpcfut
from rpcfut._codec import decode, encode
from rpcfut._wire_codes import Code
from tests.support.wire_table import TRAVELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

# Events of these families; see PEP 578. Those of object and sys are of no harm.
WATCHED = (
    *("compile", "cpython.", "ctypes.", "exec", "glob.", "import", "marshal.", "mmap."),
    *("open", "os.", "pickle.", "shutil.", "signal.", "socket.", "subprocess."),
    *("tempfile.", "urllib.", "webbrowser.", "code.", "array.", "builtins.input"),
)
NAMES = (
    *("os:system", "builtins:eval", "builtins.exec", "subprocess:Popen", "__import__"),
    *("torch:load", "numpy:load", "pickle:loads", "codecs:decode", "../../etc/passwd"),
    *("/etc/passwd", "http://a/", "|O", "O", "f4,f4", "Europe/Berlin", "cuda", "xpu:1"),
    *("privateuseone:0", "eval", "max", "__class__", "__reduce__", "return_types"),
)

_seen: list[str] = []
_is_watching = False


def _watch(event: str, args: object) -> None:
    if _is_watching and event.startswith(WATCHED):
        _seen.append(f"{event} {args!r:.200}")


def hand_made() -> Iterator[tuple[bytes, int]]:
    """Bodies with names in every place where a name may stand, and buffers to bring."""
    for name in NAMES:
        for text in (name, name.encode()):
            yield msgpack.packb({"__class__": text, "__reduce__": [text, []]}), 0
            for code in Code:
                mark = msgpack.ExtType(code, b"")
                yield msgpack.packb(msgpack.ExtType(code, name.encode())), 0
                for parts in ([text], [text, [text]], [0, text], [0, 1, 0, text, 1, 4]):
                    yield msgpack.packb([mark, *parts]), 0
                    yield msgpack.packb([mark, *parts]), 1
                yield msgpack.packb([mark, 0, text, "C", 1]), 1
    for code in range(128):
        yield msgpack.packb(msgpack.ExtType(code, b"cos\nsystem\n(S'true'\ntR.")), 0
    yield b"\xd6\xff\x00\x00\x00\x01", 0  # a timestamp
    yield b"\x80\x04cos\nsystem\n(S'true'\ntR.", 0


def damaged(body: bytes, generator: random.Random) -> bytes:
    """The body with a few bytes changed, moved or cut."""
    made = bytearray(body)
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(len(made))
        made[place] = generator.choice((generator.randrange(256), made[-1], 0xC7, 0x92))
    return bytes(made[: generator.randint(1, len(made))]) if place % 3 else bytes(made)


def honest() -> Iterator[tuple[bytes, list[bytes]]]:
    """The values of the wire table, encoded."""
    for row in TRAVELS:
        for kind in row.register:
            rpcfut.register_type(kind)
        for value in row.make():
            body, buffers = encode(value, stage=_no_stage)
            if len(body) < 100_000:
                yield body, [bytes(buffer) for buffer in buffers]


def hostile(
    sound: list[tuple[bytes, list[bytes]]], count: int
) -> Iterator[tuple[bytes, list[bytes]]]:
    """Damaged copies of sound bodies, and hand-made ones."""
    generator = random.Random(1)
    for body, buffers in sound:
        for _ in range(count):
            yield damaged(body, generator), buffers
    for body, buffer_count in hand_made():
        yield body, [bytes(16)] * buffer_count


def _no_stage(_: object) -> Any:
    raise AssertionError("a host tensor needs no stage")


def main(count: int) -> None:
    """Decode everything under watch."""
    global _is_watching
    sound = list(honest())
    bodies = list(hostile(sound, count))
    for body, buffers in sound:  # what torch imports late, it imports now
        decode(body, buffers, place=_place)
    sys.addaudithook(_watch)
    _is_watching = True
    refused = 0
    for body, buffers in bodies:
        try:
            decode(body, buffers, place=_place)
        except rpcfut.DecodeError:
            refused += 1
    seen = list(_seen)
    compile("1", "a", "eval")
    _is_watching = False
    print(len(bodies) - refused, refused)  # noqa: T201
    if seen or len(_seen) != 1:
        raise SystemExit("\n".join(seen[:20]) or "the hook saw nothing at all")


def _place(tensor: torch.Tensor, _: object) -> torch.Tensor:
    return tensor


if __name__ == "__main__":
    main(int(sys.argv[1]))
