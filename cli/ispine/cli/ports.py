"""Who listens on a port of this machine."""

import socket


def is_taken(host: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def holder(port: int) -> str:
    """The program that listens on a TCP port, in words; "" when it cannot be found out."""
    try:
        import psutil
    except ImportError:
        return ""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and tuple(connection.laddr)[1:2] == (port,) and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (OSError, psutil.Error):
        # Other users' processes may be hidden; the port is taken all the same.
        return ""
    return ""
