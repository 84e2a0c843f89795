"""mDNS on this machine: what is announced is found, and only where it may be heard."""

import asyncio
import secrets
import socket

import pytest

from ispine.protocol.discovery import SERVICE, Announcement, announced_addresses, find_hub
from ispine.protocol.errors import ConnectionLost
from ispine.sdk import AsyncSpine


def can_multicast() -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            group = socket.inet_aton("224.0.0.251") + socket.inet_aton("127.0.0.1")
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not can_multicast(), reason="needs multicast on loopback")


@pytest.fixture(autouse=True)
def own_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hubs of other people and tests on this network are not heard."""
    name = f"_t{secrets.token_hex(4)}._tcp.local."
    monkeypatch.setattr("ispine.protocol.discovery.SERVICE", name)
    monkeypatch.delenv("ISPINE_URL", raising=False)


def test_the_service_has_its_registered_form() -> None:
    assert SERVICE == "_ispine._tcp.local."


async def test_a_hub_on_loopback_is_found_with_its_address() -> None:
    announcement = Announcement("hub-7", "127.0.0.1", 4321)
    await announcement.open()
    try:
        found = await find_hub(5.0)
    finally:
        await announcement.close()
        await announcement.close()
    assert found is not None
    assert (found.hub_id, found.urls, found.url) == (
        "hub-7",
        ("mqtt://127.0.0.1:4321",),
        "mqtt://127.0.0.1:4321",
    )


async def test_a_hub_with_tls_says_so() -> None:
    announcement = Announcement("hub-7", "localhost", 4321, scheme="mqtts")
    await announcement.open()
    try:
        found = await find_hub(5.0)
    finally:
        await announcement.close()
    assert found is not None
    assert found.url == "mqtts://127.0.0.1:4321"


async def test_nobody_announces_so_nobody_is_found_in_time() -> None:
    begun = asyncio.get_running_loop().time()
    assert await find_hub(0.3) is None
    assert asyncio.get_running_loop().time() - begun < 2


def test_the_addresses_are_those_that_others_can_reach() -> None:
    assert announced_addresses("127.0.0.1") == ("127.0.0.1",)
    assert announced_addresses("localhost") == ("127.0.0.1",)
    everywhere = announced_addresses("0.0.0.0")
    assert everywhere
    outside = [address for address in everywhere if not address.startswith("127.")]
    assert outside == list(everywhere) or everywhere == ("127.0.0.1",)
    with pytest.raises(OSError, match=r"."):
        announced_addresses("no-such-host.invalid")


async def test_the_sdk_connects_to_the_hub_it_found(spine_url: str) -> None:
    host, port = spine_url.removeprefix("mqtt://").split(":")
    announcement = Announcement("hub-7", host, int(port))
    await announcement.open()
    try:
        async with await AsyncSpine.connect(timeout_s=10) as spine:
            assert spine.endpoint == spine_url
    finally:
        await announcement.close()


async def test_a_hub_that_is_announced_and_gone_is_told_within_the_time(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ispine.sdk.connecting.DEFAULT_URL", "mqtt://127.0.0.1:1")
    announcement = Announcement("hub-7", "127.0.0.1", free_port)
    await announcement.open()
    begun = asyncio.get_running_loop().time()
    try:
        with pytest.raises(
            ConnectionLost, match=f"127.0.0.1:{free_port}.*127.0.0.1:1;.*ispine hub"
        ):
            await AsyncSpine.connect(timeout_s=2)
    finally:
        await announcement.close()
    assert asyncio.get_running_loop().time() - begun < 3


@pytest.fixture
def spine_url(echo_fleet: object) -> str:
    return str(echo_fleet.url)  # type: ignore[attr-defined]
