"""What one, two and four Macs are expected to give, and what others have published.

Owns the Macs, the models and the published figures. Everything else is reckoned, by the engine on
simulated devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from . import simulate
from .links import LINKS, RDMA, Link
from .sharded import DEVSTRAL, LLAMA_8B, LLAMA_70B, QWEN_30B, QWEN_235B, QWEN_SMALL, Model, part
from .simulated import DEVICES, Device

PROMPT = 2_048


class Mac(NamedTuple):
    """A device with its ``memory`` in bytes, of which macOS lets a GPU use three quarters."""

    device: Device
    memory: float


# The M3 Ultra (819 GB/s, 80 cores) follows from figures of MLX on one machine, in 4 bits: 119
# tokens a second of Llama-3.1-8B (github.com/raullenchai/Rapid-MLX, pull request 586), and prompts
# of Llama-3.1-70B at 170 (abhiramsalammagari.com, "Dense 70B in MLX on M3 Ultra 512GB"). Its
# overhead is that of the others.
M4_MAX = Mac(DEVICES[1], 128e9)
M3_ULTRA = Mac(Device("M3 Ultra", 640e9, 23.5e12, 3e-6), 512e9)
MACS = (M4_MAX, M3_ULTRA)
MODELS = (LLAMA_8B, LLAMA_70B, QWEN_30B, QWEN_235B)


class Cluster(NamedTuple):
    """So many ``machines`` of a kind, and what joins them."""

    mac: Mac
    machines: int
    link: Link | None

    def __str__(self) -> str:
        if self.link is None:
            return f"1 {self.mac.device.name}"
        return f"{self.machines} {self.mac.device.name}, {self.link.name}"

    @property
    def device(self) -> Device:
        return replace(self.mac.device, link=self.link)

    def holds(self, model: Model, bits: int) -> bool:
        return part(model, bits, self.machines).held <= 0.75 * self.mac.memory

    def tokens(self, model: Model, bits: int, rows: int) -> float:
        """Tokens a second of so many rows that generate."""
        return simulate.steady(self.device, part(model, bits, self.machines), rows)

    def prompt(self, model: Model, bits: int, length: int = PROMPT) -> float:
        """Tokens a second of a prompt."""
        return length / simulate.alone(self.device, part(model, bits, self.machines), length)


def clusters(mac: Mac) -> Iterator[Cluster]:
    """One machine, and two and four over each link."""
    yield Cluster(mac, 1, None)
    for link in LINKS:
        for machines in (2, 4):
            yield Cluster(mac, machines, link)


class Published(NamedTuple):
    """Tokens a second that somebody measured, of a row or of a ``prompt``."""

    cluster: Cluster
    model: Model
    bits: int
    found: float
    prompt: int
    source: str

    def __str__(self) -> str:
        kind = f"a prompt of {self.prompt:,}" if self.prompt else "1 row"
        return f"{self.cluster}, {self.model.name}, {self.bits} bits, {kind}"

    def expected(self) -> float:
        if self.prompt:
            return self.cluster.prompt(self.model, self.bits, self.prompt)
        return self.cluster.tokens(self.model, self.bits, 1)


ONE, FOUR = Cluster(M3_ULTRA, 1, None), Cluster(M3_ULTRA, 4, RDMA)
PUBLISHED = (
    Published(ONE, LLAMA_8B, 4, 119.4, 0, "Rapid-MLX 586, which the device follows from"),
    Published(ONE, LLAMA_70B, 4, 170, 4_096, "Dense 70B in MLX, which the device follows from"),
    Published(ONE, DEVSTRAL, 4, 91.5, 2_048, "github.com/ml-explore/mlx, pull request 3094"),
    Published(ONE, LLAMA_70B, 16, 15.5 / 3.25, 0, "jakkuh, Apple did what NVIDIA wouldn't"),
    Published(FOUR, LLAMA_70B, 16, 15.5, 0, "jakkuh (exo)"),
    Published(FOUR, QWEN_235B, 8, 31.9, 0, "Jeff Geerling, 1.5 TB of VRAM on Mac Studio (exo)"),
)


def draft_passes(mac: Mac, link: Link, machines: int) -> tuple[float, float]:
    """Seconds of a pass of a draft model of 0.6B in 4 bits: whole on a machine, and cut."""
    device = replace(mac.device, link=link)
    whole, cut = (part(QWEN_SMALL, 4, n).seconds(device, 1, 1, 500) for n in (1, machines))
    return whole, cut
