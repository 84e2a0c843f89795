"""The hub on the local network, by mDNS (`_ispine._tcp`).

zeroconf is imported on use: nobody pays for it who names the hub.
"""

import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

SERVICE = "_ispine._tcp.local."


@dataclass(frozen=True, slots=True)
class FoundHub:
    """A hub that announced itself."""

    hub_id: str
    url: str


class Announcement:
    """A hub announces itself while this is open.

    Args:
        hub_id: of the hub.
        host: address it listens on; on a loopback address only this machine hears it.
        port: of the broker.
    """

    def __init__(self, hub_id: str, host: str, port: int) -> None:
        self._hub_id, self._host, self._port = hub_id, host, port
        self._zeroconf: AsyncZeroconf | None = None

    async def open(self) -> None:
        """Begin to announce.

        Raises:
            OSError: multicast is not possible here.
        """
        from zeroconf import ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf

        addresses = _addresses(self._host)
        self._zeroconf = AsyncZeroconf(interfaces=addresses)
        info = ServiceInfo(
            SERVICE,
            f"{self._hub_id}.{SERVICE}",
            addresses=[socket.inet_aton(address) for address in addresses],
            port=self._port,
            properties={"hub": self._hub_id, "v": "1"},
            server=f"{self._hub_id}.local.",
        )
        await self._zeroconf.async_register_service(info, allow_name_change=True)

    async def close(self) -> None:
        """Say goodbye."""
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()
            self._zeroconf = None


def _addresses(host: str) -> list[str]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return [host]
    if not address.is_unspecified:
        return [host]
    return [
        str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    ]


async def find_hub(timeout_s: float) -> FoundHub | None:
    """The first hub that answers, None when none does in time or multicast is not possible."""
    import asyncio

    from zeroconf import ServiceStateChange
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

    names: asyncio.Queue[str] = asyncio.Queue()

    def changed(name: str, state_change: ServiceStateChange, **_rest: Any) -> None:
        if state_change is ServiceStateChange.Added:
            names.put_nowait(name)

    try:
        zeroconf = AsyncZeroconf()
    except OSError:
        return None
    browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[changed])
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                info = await zeroconf.async_get_service_info(SERVICE, await names.get())
                if info is not None and info.parsed_addresses():
                    hub = (info.properties.get(b"hub") or b"hub").decode(errors="replace")
                    return FoundHub(hub, f"mqtt://{info.parsed_addresses()[0]}:{info.port}")
    except TimeoutError:
        return None
    finally:
        await browser.async_cancel()
        await zeroconf.async_close()
