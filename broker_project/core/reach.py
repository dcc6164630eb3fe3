"""Where the broker may connect to: everywhere but the networks that are refused, those allowed by a setting aside."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from broker_project.core.egress import METADATA, Address, Network, embedded_in, kind_of

NOT_ALLOWED: Final = "Address not allowed"
"""Begins the text that says of a request that it was not sent for this."""
UNREADABLE: Final = "not an IP address"
KEPT: Final = 16_384
"""Addresses whose verdicts are kept: a request is judged in the time of a look-up."""


class Reach:
    """Which addresses requests may go to; the same verdict each time, from any thread."""

    def __init__(self, allowed: Iterable[Network] = ()) -> None:
        self._allowed = tuple(allowed)
        self.refusal = lru_cache(KEPT)(self._refusal)
        """Returns what is wrong with an address, as text; empty: requests may go there."""

    def _refusal(self, text: str) -> str:
        try:
            address = ip_address(text)
        except ValueError:
            return UNREADABLE
        judged = (address, *embedded_in(address))
        return next((kind for one in judged if (kind := kind_of(one)) and not self._allows(one, kind)), "")

    def _allows(self, address: Address, kind: str) -> bool:
        """Tell whether a setting names its network: where the credentials of a machine are, no other than its own."""
        is_named = kind == METADATA
        return any(address in network and (not is_named or network.num_addresses == 1) for network in self._allowed)
