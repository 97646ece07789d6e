"""What makes a process a member: its secret, and where it listens."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from rpcfut._secret import WAYS, Secret, find_secret
from rpcfut_transport import LinkOptions, NetworkOptions, Patience

_TCP_ONLY = "RPCFUT_TCP_ONLY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What makes a process a member.

    Args:
        secret: The job's; None for workers of one user on one host.
        link: Where it listens.
    """

    secret: Secret | None
    link: LinkOptions

    @classmethod
    def find(
        cls,
        secret: str | None,
        interface: str | None,
        ports: tuple[int, int] | None,
        init_method: str,
        patience: Patience,
    ) -> Identity:
        """Find this process's; see `rpcfut.init_rpc` for the arguments.

        Raises:
            AuthenticationError: When the environment names a secret that is not usable.
            ValueError: When an argument is not usable, or needs a secret.
        """
        found = find_secret(secret)
        if found is None:
            if interface is not None or ports is not None:
                raise ValueError(
                    "interface= and ports= are for workers of other hosts, which can "
                    f"join with a secret only: {WAYS}"
                )
            return cls(secret=None, link=LinkOptions(patience=patience))
        network = NetworkOptions(
            group_key=found.derive("guests/v1"),
            interface=interface,
            ports=ports,
            toward=_host_of(init_method),
        )
        # Where one host's network is to be tried out, all go by it.
        uses_files = os.environ.get(_TCP_ONLY) != "1"
        return cls(
            secret=found,
            link=LinkOptions(network=network, uses_files=uses_files, patience=patience),
        )


def _host_of(init_method: str) -> str | None:
    """A host that all workers reach, if the init method names one."""
    if not isinstance(init_method, str):
        return None  # refused later, with a better error
    url = urlsplit(init_method)
    if url.scheme == "env":
        return os.environ.get("MASTER_ADDR")
    first = urlsplit(f"//{url.netloc.split(',')[0]}")
    return first.hostname
