"""The transport's public names: bytes, peers and links, without tensors."""

from rpcfut_transport import *  # noqa: F403 - a shim, see docs/design/architecture.md
from rpcfut_transport import __all__  # noqa: F401 - as above
