"""wirespeed, its blocking client."""

from __future__ import annotations

from peers.blocking import BASE, Blocking, main, text_report


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects with native TLS, without what raw sockets do not do: compression, keepalive."""
    import wirespeed
    from wirespeed.sync import connect as library_connect

    ws = library_connect(
        url,
        ssl=wirespeed.TLS(ca=ca) if url.startswith("wss:") else None,
        compression=None,
        max_size=None,
        ping_interval=None,
        proxy=None,
    )
    return Blocking(
        send=ws.send,
        recv=ws.recv,
        report=text_report(ws.send, ws.recv),
        messages=ws,
        recv_many=ws.recv_many,
        send_many=ws.send_many,
    )


if __name__ == "__main__":
    main("wirespeed", "wirespeed", connect, workloads=(*BASE, "stream-in-many", "send-many"))
