"""A job's secret is found in three places, and shows up in none."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import stat
from typing import TYPE_CHECKING

import pytest

import rpcfut
from rpcfut._secret import Secret, Signer, find_secret

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "5f" * 32
OTHER = "60" * 32


@pytest.fixture(autouse=True)
def _no_secret_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RPCFUT_SECRET", raising=False)
    monkeypatch.delenv("RPCFUT_SECRET_FILE", raising=False)


def _file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def _same(one: Secret | None, other: Secret | None) -> bool:
    assert one is not None
    assert other is not None
    return one.derive("x") == other.derive("x")


def test_without_a_secret_there_is_none() -> None:
    assert find_secret() is None


def test_the_argument_comes_first_then_the_variable_then_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RPCFUT_SECRET_FILE", str(_file(tmp_path, f"{TEXT}\n")))
    assert _same(find_secret(), Secret(TEXT))
    monkeypatch.setenv("RPCFUT_SECRET", OTHER)
    assert _same(find_secret(), Secret(OTHER))
    assert _same(find_secret(TEXT), Secret(TEXT))


@pytest.mark.parametrize("given", ["", "short", "x" * 31, 5, b"x" * 64])
def test_a_short_secret_is_refused_without_being_shown(given: object) -> None:
    with pytest.raises(ValueError, match=r"at least 32 characters.*keygen") as caught:
        find_secret(given)  # type: ignore[arg-type]
    assert "short" not in str(caught.value)


def test_an_empty_variable_is_an_error_not_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that was meant to be protected does not run unprotected."""
    monkeypatch.setenv("RPCFUT_SECRET", "")
    with pytest.raises(rpcfut.AuthenticationError, match="RPCFUT_SECRET holds no"):
        find_secret()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_a_file_that_others_may_read_or_write_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int
) -> None:
    path = _file(tmp_path, TEXT, mode)
    monkeypatch.setenv("RPCFUT_SECRET_FILE", str(path))
    with pytest.raises(rpcfut.AuthenticationError, match=f"chmod 600 {path}") as caught:
        find_secret()
    assert TEXT not in str(caught.value)


def test_a_file_with_mode_0400_will_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Clusters mount secrets so, through links."""
    link = tmp_path / "link"
    link.symlink_to(_file(tmp_path, TEXT, stat.S_IRUSR))
    monkeypatch.setenv("RPCFUT_SECRET_FILE", str(link))
    assert _same(find_secret(), Secret(TEXT))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = _file(tmp_path, TEXT)
    os.chown(path, 12345, -1)
    monkeypatch.setenv("RPCFUT_SECRET_FILE", str(path))
    with pytest.raises(rpcfut.AuthenticationError, match="belongs to user 12345"):
        find_secret()


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "empty", "\0"])
def test_a_file_that_holds_no_secret_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """At once, also a pipe that nobody writes to."""
    path = tmp_path / "secret"
    if kind == "folder":
        path.mkdir(mode=0o700)
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "empty":
        _file(tmp_path, " \n")
    if kind == "\0":
        monkeypatch.setattr(os, "environ", {"RPCFUT_SECRET_FILE": "a\0b"})
    else:
        monkeypatch.setenv("RPCFUT_SECRET_FILE", str(path))
    with pytest.raises(rpcfut.AuthenticationError, match="RPCFUT_SECRET_FILE"):
        find_secret()


def test_a_secret_shows_up_nowhere() -> None:
    """Not in text, not in a copy for another process (RPC-10)."""
    secret = Secret(TEXT)
    shown = f"{secret} {secret!r} {Signer(secret, 'g')!r}"
    assert TEXT not in shown
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="is not pickled"):
            attempt(secret)


def test_what_is_derived_says_nothing_of_the_rest() -> None:
    secret = Secret(TEXT)
    derived = {secret.derive("a"), secret.derive("b"), Secret(OTHER).derive("a")}
    assert len(derived) == 3
    assert {len(key) for key in derived} == {32}
    assert all(TEXT.encode() not in key for key in derived)


def test_a_signed_record_is_opened_with_the_same_secret_for_the_same_group() -> None:
    signed = Signer(Secret(TEXT), "g").sign('{"rank": 1}').encode()
    assert Signer(Secret(TEXT), "g").verify(signed, "rank 1") == b'{"rank": 1}'
    for signer in (
        Signer(Secret(OTHER), "g"),
        Signer(Secret(TEXT), "h"),
        Signer(None, "g"),
    ):
        with pytest.raises(rpcfut.AuthenticationError, match=r"rank 1 .*secret"):
            signer.verify(signed, "rank 1")


def test_no_bit_of_a_signed_record_can_be_changed() -> None:
    signer = Signer(Secret(TEXT), "g")
    signed = signer.sign('{"rank": 1}').encode()
    for index in range(len(signed)):
        changed = bytearray(signed)
        changed[index] ^= 1
        with pytest.raises(rpcfut.AuthenticationError):
            signer.verify(bytes(changed), "rank 1")


@pytest.mark.parametrize("raw", [b"", b"{}", b"\xff" * 100, b"0" * 64, b"{" * 65])
def test_what_nobody_signed_is_refused(raw: bytes) -> None:
    with pytest.raises(rpcfut.AuthenticationError, match=r"signed by nobody.*keygen"):
        Signer(Secret(TEXT), "g").verify(raw, "rank 1")


def test_a_text_cannot_move_between_group_and_record() -> None:
    """What is signed is not the mere concatenation of the two."""
    signed = Signer(Secret(TEXT), "g").sign("{a")
    assert Signer(Secret(TEXT), "g{").sign("a")[:64] != signed[:64]


def test_without_a_secret_records_are_plain() -> None:
    signer = Signer(None, "g")
    assert signer.sign("{}") == "{}"
    assert signer.verify(b"anything", "rank 1") == b"anything"


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        (TEXT, OTHER, "the secret of me is not that of you"),
        (TEXT, None, "me has a secret, you has none"),
        (None, TEXT, "me has no secret, you has one"),
    ],
)
def test_a_worker_finds_out_that_its_secret_is_another(
    mine: str | None, theirs: str | None, text: str
) -> None:
    """On its own side, and the message names all ways to give one (RPC-10)."""
    me, you = (Signer(Secret(s) if s else None, "g") for s in (mine, theirs))
    proof = you.prove().encode()
    with pytest.raises(rpcfut.AuthenticationError, match=text) as caught:
        me.compare(proof, mine="me", theirs="you")
    for way in ("secret=", "RPCFUT_SECRET", "RPCFUT_SECRET_FILE", "keygen"):
        assert way in str(caught.value)
    you.compare(proof, mine="you", theirs="you")


@pytest.mark.parametrize("proof", [b"", b":", b"none ", b"a:b:c", b"\xff:" + b"0" * 64])
def test_a_proof_that_makes_no_sense_is_none(proof: bytes) -> None:
    with pytest.raises(rpcfut.AuthenticationError, match="is not that of"):
        Signer(Secret(TEXT), "g").compare(proof, mine="me", theirs="you")


def test_two_proofs_of_one_secret_differ() -> None:
    """Whoever reads them learns nothing but that they are proofs."""
    signer = Signer(Secret(TEXT), "g")
    assert signer.prove() != signer.prove()


def test_no_local_of_a_failed_joining_holds_the_secret() -> None:
    """Tools that report errors print them (RPC-10)."""
    with pytest.raises(rpcfut.RendezvousError) as caught:
        rpcfut.init_rpc("w", 0, 1, init_method="nonsense://", secret="5f" * 32)
    frame = caught.tb
    shown = []
    while (frame := frame.tb_next) is not None:  # type: ignore[assignment]
        shown.append(repr(frame.tb_frame.f_locals))
    assert shown
    assert not any("5f5f5f" in text for text in shown)


@pytest.mark.parametrize("option", [{"interface": "lo"}, {"ports": (29500, 29510)}])
def test_other_hosts_without_a_secret_are_refused_with_the_three_ways_out(
    option: dict[str, object],
) -> None:
    """Before anything is opened (RPC-10)."""
    with pytest.raises(ValueError, match="with a secret only") as caught:
        rpcfut.init_rpc("w", 0, 1, **option)  # type: ignore[arg-type]
    for way in ("secret=", "RPCFUT_SECRET", "RPCFUT_SECRET_FILE"):
        assert way in str(caught.value)


@pytest.mark.parametrize(
    "option",
    [
        {"ports": (5, 4)},
        {"ports": (0, 4)},
        {"ports": (1, 65536)},
        {"ports": 29500},
        {"ports": (1, 2, 3)},
        {"interface": ""},
        {"interface": 5},
    ],
)
def test_a_range_or_an_interface_that_is_none_is_refused(
    option: dict[str, object],
) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be"):
        rpcfut.init_rpc("w", 0, 1, secret=TEXT, **option)  # type: ignore[arg-type]


def test_a_group_of_one_with_a_secret_says_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not in a log, at any level (RPC-10)."""
    caplog.set_level(logging.DEBUG)
    rpcfut.init_rpc("w", 0, 1, secret=TEXT, interface="127.0.0.1")
    try:
        agent = rpcfut.current_agent()
        link = agent._endpoint._link
        keys = [link._network._keys.secret, link._network._guest.secret]
        shown = f"{agent!r} {agent._endpoint!r} {link!r} {link._network!r} {keys[0:0]}"
        shown += f"{agent.record!r} {link._network._keys!r} {link._network._guest!r}"
    finally:
        rpcfut.shutdown()
    for said in (caplog.text, shown):
        for hidden in (TEXT, *keys):
            assert hidden not in said
