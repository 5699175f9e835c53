"""wirespeed, its blocking client. Its compression has level 6 and memory level 5."""

from __future__ import annotations

from models.peer import main
from models.program import Library
from models.twins import blocking
from peers.wirespeed.peer import native_tls

if __name__ == "__main__":
    library = blocking("models.interface").Interface("wirespeed.sync", "wirespeed.sync", "wirespeed", tls=native_tls)
    # Two threads may share a connection.
    client = library.client_of(more=("stream-in-many", "send-many", "duplex"))
    main(Library("wirespeed", "wirespeed"), client)
