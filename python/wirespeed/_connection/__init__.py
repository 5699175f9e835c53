"""Code shared by the connections of both APIs: state, status attributes, JSON and MessagePack, construction."""
