"""Cables between machines: what a sum over all of them takes.

Owns the arithmetic of a sum, and the published figures that it stands on. Must never know a model.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """``latency`` in seconds of a sum of nothing on two machines, ``bandwidth`` in bytes a second
    each way, and whether all machines are joined to all others (``mesh``) or in a ring."""

    name: str
    latency: float
    bandwidth: float
    mesh: bool = False

    def sum(self, nbytes: float, machines: int) -> float:
        """Seconds of ``all_sum`` of so many bytes.

        In a mesh each machine sends all that it has to each other one, over a cable each. In a
        ring a part of it goes round twice, in ``2 * (machines - 1)`` steps one after the other.
        """
        if machines == 1:
            return 0.0
        if self.mesh:
            return self.latency + nbytes / self.bandwidth
        steps = 2 * (machines - 1)
        return steps * (self.latency / 2 + nbytes / machines / self.bandwidth)


# JACCL: 26 µs for sums of 7 to 14 KB on four M3 Ultra (github.com/ml-explore/mlx, discussion 3939),
# 25.5 µs for 4 KB and 6.7 to 8 GB/s from 4 MB on, on two M4 Pro (github.com/omar-karray/
# mlx-jaccl-cluster), 27 to 31 µs and 6.1 to 6.5 GB/s (github.com/jundot/omlx, pull request 3118).
# The ring over Thunderbolt: 300 µs (jeffgeerling.com, "1.5 TB of VRAM on Mac Studio"; a round trip
# of a packet there takes 380 to 950 µs, github.com/exo-explore/exo, issue 2295) and 10 to 20 Gbit/s
# (github.com/georgiedekker/mlx_distributed_ring_inference_v2). Ethernet: what 10 Gbit/s leave for
# TCP; its latency is an assumption, that of the other ring, because both pass the same software.
RDMA = Link("Thunderbolt 5, RDMA (JACCL)", 26e-6, 6.5e9, mesh=True)
THUNDERBOLT = Link("Thunderbolt, TCP (ring)", 300e-6, 2e9)
ETHERNET = Link("10-gigabit Ethernet (ring)", 300e-6, 1.18e9)
LINKS = (RDMA, THUNDERBOLT, ETHERNET)
