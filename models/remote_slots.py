"""llama-server's slot files: the KV of a conversation on the server's disk, so that it comes back there too."""

from __future__ import annotations

import hashlib
import re

from models.remote_client import RemoteClient
from models.remote_errors import RemoteError
from models.remote_probe import Facts
from models.remote_profile import RemoteProfile

SLOT_S = 20.0
"""How long a server may take to save or read a slot."""


class Slots:
    """Saves and restores one slot, one file a conversation. What cannot be had is no error: the server reads it anew.

    What a restore says is not believed: the next answer's count of evaluated tokens tells.
    """

    def __init__(self, client: RemoteClient, profile: RemoteProfile, facts: Facts) -> None:
        self._client = client
        self._url = f"{profile.root}/slots/{facts.slot}"
        # A server takes any file whose shapes fit: one of another model would be taken, and answer nonsense.
        self._mark = hashlib.sha256(
            f"{facts.model}\0{facts.n_params}\0{facts.weights_bytes}\0{facts.version}".encode()
        ).hexdigest()[:12]
        self._resident = ""

    async def bring(self, conversation: str) -> bool:
        """Have a conversation's KV in the slot, unless it was the last one there; True if the server took a file."""
        if not conversation or conversation == self._resident:
            return False
        self._resident = ""
        was_read = await self._do("restore", conversation) is not None
        self._resident = conversation if was_read else ""
        return was_read

    async def keep(self, conversation: str) -> int:
        """Save what is in the slot as a conversation's; return the bytes written, 0 if it could not be saved."""
        self._resident = conversation
        return await self._do("save", conversation) or 0 if conversation else 0

    def lose(self) -> None:
        """Something else is in the slot now."""
        self._resident = ""

    def file_of(self, conversation: str) -> str:
        """The name of a conversation's file in the server's slot folder."""
        return f"chatapp-{re.sub(r'[^A-Za-z0-9-]', '-', conversation)}-{self._mark}.bin"

    async def _do(self, action: str, conversation: str) -> int | None:
        """Return how many bytes the server wrote or read; None if it did not."""
        try:
            status, _, answer = await self._client.fetch(
                f"{self._url}?action={action}", {"filename": self.file_of(conversation)}, read_s=SLOT_S
            )
        except RemoteError:
            return None
        n_bytes = answer.get("n_written" if action == "save" else "n_read") if isinstance(answer, dict) else None
        return n_bytes if status == 200 and type(n_bytes) is int and n_bytes >= 0 else None
