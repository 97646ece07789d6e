"""Keys of CURVE, the encryption of ZeroMQ, as text of 40 characters (Z85)."""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

import zmq
from zmq.utils import z85

from rpcfut_transport._errors import LinkError

_KEY_NCHARS = 40
_FIXED = (4, 3, 3)  # before, a handshake could overflow a buffer or starve others
_GUEST = b"rpcfut guest v1"


class KeyPair(NamedTuple):
    """Two halves; the secret one shows up nowhere."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"<KeyPair {self.public!r}>"


def new_key_pair() -> KeyPair:
    """Make a key pair that nobody had before.

    Raises:
        LinkError: When this build of ZeroMQ has no encryption, or a broken one.
    """
    if not zmq.has("curve") or zmq.zmq_version_info() < _FIXED:
        raise LinkError(
            f"ZeroMQ {zmq.zmq_version()} cannot encrypt safely; wanted 4.3.3 or later "
            "with CURVE, as the wheels of pyzmq have it: pip install --upgrade pyzmq"
        )
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def guest_key_pair(group_key: bytes) -> KeyPair:
    """The key pair that all who know the key of a group have in common."""
    secret = encode_key(hmac.digest(group_key, _GUEST, hashlib.sha256))
    return KeyPair(zmq.curve_public(secret.encode()).decode(), secret)


def encode_key(key: bytes) -> str:
    """Write 32 bytes as text."""
    return z85.encode(key).decode()


def check_public_key(text: str, owner: str) -> None:
    """Check a key that came from elsewhere.

    Raises:
        LinkError: When it is none; the message says whose.
    """
    try:
        good = len(text) == _KEY_NCHARS and z85.decode(text)
    except (KeyError, ValueError, struct.error):
        good = False
    if not good:
        raise LinkError(f"{owner} has the public key {text[:80]!r}, which is none")
