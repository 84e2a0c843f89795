"""A wearable with nothing but a socket: MQTT 3.1.1 by hand, for MicroPython and CPython.

    python examples/plain_mqtt.py HOST PORT detect photo.jpg
    micropython examples/plain_mqtt.py HOST PORT detect photo.jpg

Copy the class to a microcontroller; it needs no other file. The picture is sent as it is, the
answer is JSON.
"""

import binascii
import json
import os
import socket
import sys

CONNECT, PUBLISH, SUBSCRIBE, PING, DISCONNECT = 0x10, 0x30, 0x82, 0xC0, 0xE0
CONNACK, SUBACK = 0x20, 0x90
KEEPALIVE_S = 60
MAX_ANSWER = 64 * 1024


def text(value):
    """A string as MQTT writes it: two bytes of length, then UTF-8."""
    data = value.encode()
    return bytes((len(data) >> 8, len(data) & 255)) + data


def length(count):
    """A packet's remaining length: seven bits a byte, lowest first."""
    out = bytearray()
    while True:
        count, digit = count >> 7, count & 127
        out.append(digit | 128 if count else digit)
        if not count:
            return bytes(out)


class Glasses:
    """Asks the fleet, one question at a time.

    Args:
        host, port: of the hub.
        name: 1 to 64 letters, digits, "_" or "-".
        timeout_s: how long to wait for the hub.
    """

    def __init__(self, host, port, name, timeout_s=10):
        self.name = name
        self.count = 0
        # The hub knows a task by its id for minutes: another run has to use other ids.
        self.run = binascii.hexlify(os.urandom(4)).decode()
        self.socket = socket.socket()
        self.socket.settimeout(timeout_s)
        self.socket.connect(socket.getaddrinfo(host, port)[0][-1])
        if hasattr(socket, "TCP_NODELAY"):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = text("MQTT") + bytes((4, 2)) + bytes((KEEPALIVE_S >> 8, KEEPALIVE_S & 255))
        self.send(CONNECT, head + text(""))
        if self.read(CONNACK)[1] != 0:
            raise OSError("the hub refuses the connection")
        self.send(SUBSCRIBE, bytes((0, 1)) + text("ispine/results/" + name + "/+") + bytes((1,)))
        if self.read(SUBACK)[2] == 128:
            raise OSError("the hub refuses the subscription")

    def ask(self, capability, data):
        """Send bytes to a capability; its answer as a dictionary.

        `status` is "done" with `result`, `text` or `data` (base64), else `error` says why not.
        """
        self.count += 1
        task = self.run + "-" + str(self.count)
        self.send(PUBLISH, text("ispine/tasks/" + capability + "/" + self.name + "/" + task), data)
        while True:
            topic, answer = self.next_publish()
            if topic.endswith("/" + task):
                return json.loads(answer)

    def close(self):
        """Say goodbye."""
        self.send(DISCONNECT, b"")
        self.socket.close()

    def ping(self):
        """Tell the hub that we are alive; call it at least once a minute between questions."""
        self.send(PING, b"")

    def send(self, kind, head, data=b""):
        """One packet; the data is not copied, memory is short."""
        packet = bytes((kind,)) + length(len(head) + len(data)) + head
        for part in (packet, data):
            left = memoryview(part)
            while left:
                left = left[self.socket.send(left) :]

    def receive(self, count):
        """Exactly so many bytes."""
        out = bytearray()
        while len(out) < count:
            piece = self.socket.recv(count - len(out))
            if not piece:
                raise OSError("the hub closed the connection")
            out.extend(piece)
        return bytes(out)

    def packet(self):
        """The next packet: its first byte and its body."""
        kind = self.receive(1)[0]
        count = shift = 0
        for _ in range(4):
            digit = self.receive(1)[0]
            count |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                break
        if count > MAX_ANSWER:
            raise OSError("an answer of " + str(count) + " bytes does not fit")
        return kind, self.receive(count)

    def read(self, wanted):
        """The body of the next packet, which has to be of that kind."""
        kind, body = self.packet()
        if kind != wanted:
            raise OSError("expected packet " + hex(wanted) + "; got " + hex(kind))
        return body

    def next_publish(self):
        """Topic and payload of the next message; QoS 1 is acknowledged."""
        while True:
            kind, body = self.packet()
            if kind & 0xF0 != PUBLISH:
                continue
            end = 2 + (body[0] << 8 | body[1])
            topic = body[2:end].decode()
            if kind & 6:
                self.send(0x40, body[end : end + 2])
                end += 2
            return topic, body[end:]


def main():
    """Ask once, print the answer."""
    if len(sys.argv) != 5:
        print("usage: plain_mqtt.py HOST PORT CAPABILITY FILE")
        return 2
    host, port, capability, path = sys.argv[1:]
    with open(path, "rb") as file:  # noqa: PTH123 - MicroPython has no pathlib
        data = file.read()
    glasses = Glasses(host, int(port), "glasses-1")
    answer = glasses.ask(capability, data)
    glasses.close()
    print(json.dumps(answer))
    return 0 if answer["status"] == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
