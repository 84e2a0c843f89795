"""The hub on the local network, by mDNS (`_ispine._tcp`).

What is found is only a place to look: anybody on the network can announce anything.
zeroconf is imported on use: nobody pays for it who names the hub.
"""

import asyncio
import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ispine.protocol.ids import is_id

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

SERVICE = "_ispine._tcp.local."
ANY_IPV4 = "0.0.0.0"
MAX_URLS = 4
_SCHEMES = ("mqtt", "mqtts")


@dataclass(frozen=True, slots=True)
class FoundHub:
    """A hub that announced itself.

    Attributes:
        hub_id: what it calls itself, "hub" where that is no valid id.
        urls: where it says it listens, best first, at most four.
    """

    hub_id: str
    urls: tuple[str, ...]

    @property
    def url(self) -> str:
        """The first of `urls`."""
        return self.urls[0]


class Announcement:
    """A hub announces itself while this is open.

    Args:
        hub_id: of the hub.
        host: address it listens on; on a loopback address only this machine hears it.
        port: of the broker.
        scheme: `mqtt`, or `mqtts` where the port speaks TLS.
    """

    def __init__(self, hub_id: str, host: str, port: int, scheme: str = "mqtt") -> None:
        self._hub_id, self._host, self._port, self._scheme = hub_id, host, port, scheme
        self._zeroconf: AsyncZeroconf | None = None

    async def open(self) -> None:
        """Begin to announce.

        Raises:
            OSError: no such address, or multicast is not possible here.
        """
        from zeroconf import ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf

        addresses = await asyncio.to_thread(announced_addresses, self._host)
        self._zeroconf = AsyncZeroconf(interfaces=list(addresses))
        info = ServiceInfo(
            SERVICE,
            f"{self._hub_id}.{SERVICE}",
            addresses=[socket.inet_aton(address) for address in addresses],
            port=self._port,
            properties={"hub": self._hub_id, "v": "1", "scheme": self._scheme},
            server=f"{self._hub_id}.local.",
        )
        try:
            await self._zeroconf.async_register_service(info, allow_name_change=True)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Say goodbye. Idempotent."""
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is not None:
            await zeroconf.async_unregister_all_services()
            await zeroconf.async_close()


def announced_addresses(host: str) -> tuple[str, ...]:
    """The IPv4 addresses under which others reach a hub that listens on `host`.

    Those of all interfaces for `0.0.0.0`, but the loopback one only where there is no other.

    Raises:
        OSError: the name is unknown, or has no IPv4 address.
    """
    if host not in (ANY_IPV4, "::", ""):
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
        return (str(found[0][4][0]),)
    import ifaddr

    found_here = (entry for adapter in ifaddr.get_adapters() for entry in adapter.ips)
    addresses = [entry.ip for entry in found_here if isinstance(entry.ip, str)]
    outside = [each for each in addresses if not ipaddress.ip_address(each).is_loopback]
    return tuple(outside or addresses or ["127.0.0.1"])


async def find_hub(timeout_s: float) -> FoundHub | None:
    """The first hub that answers, None when none does in time or multicast is not possible."""
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
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(zeroconf.async_close)
        browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[changed])
        stack.push_async_callback(browser.async_cancel)
        try:
            async with asyncio.timeout(timeout_s):
                return await _first(zeroconf, names)
        except TimeoutError:
            return None


async def _first(zeroconf: "AsyncZeroconf", names: asyncio.Queue[str]) -> FoundHub:
    while True:
        info = await zeroconf.async_get_service_info(SERVICE, await names.get())
        found = None if info is None else _read(info)
        if found is not None:
            return found


def _read(info: "AsyncServiceInfo") -> FoundHub | None:
    """The hub of an answer from the network, None where it names no usable address."""
    if not info.port:
        return None
    hub_id, scheme = (
        (info.properties.get(key) or b"").decode(errors="replace") for key in (b"hub", b"scheme")
    )
    hosts = [_in_url(address) for address in info.parsed_scoped_addresses()[:MAX_URLS]]
    urls = tuple(
        f"{scheme if scheme in _SCHEMES else 'mqtt'}://{host}:{info.port}" for host in hosts
    )
    return FoundHub(hub_id if is_id(hub_id) else "hub", urls) if urls else None


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
