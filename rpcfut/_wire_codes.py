"""The closed table of what msgpack does not have (RPC-9, RPC-10).

None, bool, int of 64 bits, float, str, bytes, list, and dict with text keys alone are
msgpack's own. The rest is written in one of two ways:

- A *scalar* is an extension value, its code and its bytes.
- A *compound* is an array that starts with an empty extension value, its *mark*; the
  other elements are its parts. A plain list never starts with a mark, since no value is
  written as one. So everything is packed and unpacked in one pass, and nothing is
  copied once for each level around it.

A body with dense tensors starts with their table, see `_tensor_table`.

=====  ============  ======================================================
code   what          bytes, or parts
=====  ============  ======================================================
1      int           beyond 64 bits: two's complement, big endian
2      complex       two float64, little endian
3      Ellipsis      none
4      Decimal       its text
5      UUID          16 bytes
6..8   path          PurePosixPath, PosixPath, PureWindowsPath: its text
9      date          ordinal, 4 bytes
10     timedelta     days, seconds, microseconds, 4 bytes each
11     bytearray     its bytes
12     torch.dtype   index in the table of `_dtypes`
13     torch.device  its text
14     torch.layout  its name
15     memory_format its name
16     NotImplemented  none
31     tensor        its row in the table, 4 bytes
32     tuple         its elements
33,34  set           set, frozenset: its elements
35     dict          with keys that are not all text: key, value, key, value ...
36     OrderedDict   a state_dict's _metadata or None, key, value ...
37     defaultdict   name of a builtin type or None, key, value ...
38     Counter       key, value ...
39     deque         maxlen or None, elements
40,41  range, slice  start, stop, step
42     Fraction      numerator, denominator
43     datetime      year .. microsecond, fold, and as for 44
44     time          hour .. microsecond, fold, UTC offset in µs or None, name or None
45     timezone      UTC offset in µs, name or None
46     torch.Size    its elements
47     torch struct  name in torch.return_types, elements
48     PackedSequence  data, batch_sizes, sorted_indices, unsorted_indices
49     registered    wire name, flattened value
50     tensor        that is not dense: kind, flags, parts; see `_tensor_layouts`
52     NumPy array   see `_numpy_codec`
53     NumPy scalar  see `_numpy_codec`
54,55  bulk          bytes, bytearray: index of the buffer
=====  ============  ======================================================
"""

from __future__ import annotations

import enum
import struct
from typing import Final

# Deeper values are mistakes, and comparing or printing them would not end well.
MAX_DEPTH: Final = 200
# A request is [name, [arguments], {arguments by name}]: these do not count.
REQUEST_DEPTH: Final = 2
# Plain values beyond this belong into tensors or bytes. What a body may cost in memory
# is counted in `_wire_weights`.
MAX_BODY_NBYTES: Final = 64 << 20
# Lists, dicts and whatever is written as a list: bounds the time that one value takes.
MAX_CONTAINERS: Final = 1 << 21
# Longer bytes travel in buffers of their own.
INLINE_NBYTES: Final = 64 << 10
# A larger table of tensors travels in a buffer of its own.
INLINE_TABLE_NBYTES: Final = 4 << 10
# What a body with tensors starts with: a byte that msgpack never writes, and the size
# of the table that follows; 0 if the table is the last buffer.
TABLE_HEAD: Final = struct.Struct("<BI")
TABLE_BYTE: Final = 0xC1
# The first code of a mark; the ones below are those of scalars.
FIRST_MARK: Final = 32


class Code(enum.IntEnum):
    """Extension codes; a change of their meaning is a new protocol."""

    INT = 1
    COMPLEX = 2
    ELLIPSIS = 3
    DECIMAL = 4
    UUID = 5
    PURE_POSIX_PATH = 6
    POSIX_PATH = 7
    PURE_WINDOWS_PATH = 8
    DATE = 9
    TIMEDELTA = 10
    BYTEARRAY = 11
    DTYPE = 12
    DEVICE = 13
    LAYOUT = 14
    MEMORY_FORMAT = 15
    NOT_IMPLEMENTED = 16
    TENSOR = 31
    TUPLE = 32
    SET = 33
    FROZENSET = 34
    DICT = 35
    ORDERED_DICT = 36
    DEFAULT_DICT = 37
    COUNTER = 38
    DEQUE = 39
    RANGE = 40
    SLICE = 41
    FRACTION = 42
    DATETIME = 43
    TIME = 44
    TIMEZONE = 45
    SIZE = 46
    STRUCT = 47
    PACKED_SEQUENCE = 48
    REGISTERED = 49
    LAYOUT_TENSOR = 50
    ARRAY = 52
    ARRAY_SCALAR = 53
    BULK_BYTES = 54
    BULK_BYTEARRAY = 55
