"""wirespeed, engine, under load."""

from __future__ import annotations

from pathlib import Path

from models.program import Library
from serving.load import MODELS
from serving.peer import main

if __name__ == "__main__":
    # In the style native there is no Python that could count or publish.
    native = [name for name, model in MODELS.items() if model.role == "echo"]
    main(
        Path(__file__).with_name("server.py"),
        [Library("wirespeed", "wirespeed")],
        token_styles=["jwt"],
        limited={"native": native, "decode": ["sink"]},
        tls=True,
        pairs={"nats": "nats", "redis": "redis", "apart": None},
        counts=True,
    )
