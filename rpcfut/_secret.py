"""The secret of a job: where it comes from, and what is signed with it.

Theory of operation. All workers of a job are given one secret, on a way of the user's
own: the store in which they meet is open to anyone who can reach it. What a worker
publishes there is signed with a key derived from the secret, together with the group
that it is for; so nobody else can add a worker, or change what one says. One worker
publishes a proof of its secret, so that one with another secret finds that out itself.

A secret shows up nowhere: not in its own `repr`, not in errors, and it cannot be
pickled.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from typing import NoReturn

from rpcfut._errors import AuthenticationError

VARIABLE = "RPCFUT_SECRET"
FILE_VARIABLE = "RPCFUT_SECRET_FILE"
WAYS = (
    "give all workers of the job one secret, by init_rpc(secret=...), in the "
    f"environment variable {VARIABLE}, or in a file of yours with mode 0600 that "
    f"{FILE_VARIABLE} names; `python -m rpcfut keygen` makes one"
)

_MIN_NCHARS = 32
_MAX_FILE_NBYTES = 4096
_DIGEST_NCHARS = 64
_NONCE_NBYTES = 16
_SIGNED = re.compile(rb"[0-9a-f]{64}\{")
_NO_SECRET = b"none"


class Secret:
    """A job's secret. Any thread; does not change.

    Args:
        text: At least 32 characters that nobody can guess.

    Raises:
        ValueError: When it is none.
    """

    __slots__ = ("_key",)

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or len(text) < _MIN_NCHARS:
            got = f"{len(text)}" if isinstance(text, str) else type(text).__name__
            raise ValueError(
                f"a secret is text of at least {_MIN_NCHARS} characters, got {got}; "
                "`python -m rpcfut keygen` makes one"
            )
        self._key = hashlib.sha256(text.encode()).digest()

    def derive(self, purpose: str) -> bytes:
        """Return 32 bytes that say nothing of the secret, nor of other purposes'."""
        return hmac.digest(self._key, f"rpcfut/{purpose}".encode(), hashlib.sha256)

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled: each process is given it by itself")


def find_secret(given: str | Secret | None = None) -> Secret | None:
    """Find this process's secret.

    Args:
        given: The secret, if the caller has it; else the environment says it, or names
            a file.

    Returns:
        It, or None when there is none.

    Raises:
        ValueError: When `given` is no secret.
        AuthenticationError: When the environment names one that is not usable.
    """
    if given is not None:
        return given if isinstance(given, Secret) else Secret(given)
    text = os.environ.get(VARIABLE)
    if text is not None:
        return _read(text, f"the environment variable {VARIABLE}")
    path = os.environ.get(FILE_VARIABLE)
    if path is not None:
        return _read(_read_file(path), f"the file {path!r} ({FILE_VARIABLE})")
    return None


def _read(text: str, source: str) -> Secret:
    try:
        return Secret(text.strip())
    except ValueError as error:
        raise AuthenticationError(f"{source} holds no secret: {error}") from None


def _read_file(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise AuthenticationError(
            f"cannot read the secret in {path!r} ({FILE_VARIABLE}): {error}"
        ) from None
    try:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        is_ours = found.st_uid in {os.getuid(), 0}
        if not stat.S_ISREG(found.st_mode) or not is_ours or mode & 0o077:
            raise AuthenticationError(
                f"others may know the secret in {path!r} ({FILE_VARIABLE}): it belongs "
                f"to user {found.st_uid} with mode {mode:#o}; wanted a file of user "
                f"{os.getuid()} with mode 0o600: chmod 600 {path}"
            )
        return os.read(fd, _MAX_FILE_NBYTES).decode(errors="replace")
    finally:
        os.close(fd)


class Signer:
    """What the workers of one group publish, and how they know it as theirs.

    Any thread. Without a secret nothing is signed, and nothing signed is accepted.

    Args:
        secret: This worker's, if it has one.
        group: What names the group, so that nothing is taken for that of another.
    """

    def __init__(self, secret: Secret | None, group: str) -> None:
        self._secret = secret
        self._group = group.encode()

    def __repr__(self) -> str:
        how = "unsigned" if self._secret is None else "signed"
        return f"<Signer {how} {self._group.decode()!r}>"

    def sign(self, text: str) -> str:
        """Sign what this worker publishes: a text that begins with a brace."""
        return text if self._secret is None else self._mac("member", text) + text

    def verify(self, raw: bytes, owner: str) -> bytes:
        """Check what somebody published; hostile input.

        Args:
            raw: What was found.
            owner: Who published it, for messages, as in ``"rank 3"``.

        Returns:
            What was signed.

        Raises:
            AuthenticationError: When it was not signed with this secret for this group,
                or was signed and there is no secret here.
        """
        is_signed = _SIGNED.match(raw) is not None
        if self._secret is None:
            if is_signed:
                raise AuthenticationError(
                    f"{owner} has a secret, this worker none: {WAYS}"
                )
            return raw
        mac, text = raw[:_DIGEST_NCHARS], raw[_DIGEST_NCHARS:]
        if not hmac.compare_digest(mac, self._mac("member", text).encode()):
            how = (
                "with another secret, or for another group"
                if is_signed
                else "by nobody"
            )
            raise AuthenticationError(
                f"the record of {owner} is signed {how}: {WAYS}; and each run needs a "
                "store of its own"
            )
        return text

    def prove(self) -> str:
        """What others can compare their secret with, and learn nothing else from."""
        if self._secret is None:
            return _NO_SECRET.decode()
        nonce = secrets.token_hex(_NONCE_NBYTES)
        return f"{nonce}:{self._mac('proof', nonce)}"

    def compare(self, proof: bytes, *, mine: str, theirs: str) -> None:
        """Check that this worker's secret is another's; hostile input.

        Args:
            proof: What the other published.
            mine: Who this worker is, for messages, as in ``"rank 1"``.
            theirs: Who the other is.

        Raises:
            AuthenticationError: When it is not; says who has none, if one has none.
        """
        if self._secret is None:
            if proof == _NO_SECRET:
                return
            raise AuthenticationError(f"{mine} has no secret, {theirs} has one: {WAYS}")
        if proof == _NO_SECRET:
            raise AuthenticationError(f"{mine} has a secret, {theirs} has none: {WAYS}")
        nonce, _, mac = proof.partition(b":")
        if not hmac.compare_digest(mac, self._mac("proof", nonce).encode()):
            raise AuthenticationError(
                f"the secret of {mine} is not that of {theirs}: {WAYS}"
            )

    def _mac(self, kind: str, text: str | bytes) -> str:
        """Sign a text; no two purposes or groups are mixed up."""
        assert self._secret is not None
        signed = text.encode() if isinstance(text, str) else text
        head = b"%d:%b" % (len(self._group), self._group)
        key = self._secret.derive(f"{kind}/v1")
        return hmac.digest(key, head + signed, hashlib.sha256).hex()
