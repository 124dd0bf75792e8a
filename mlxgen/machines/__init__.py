"""Several machines that run one model together: their ranks, and the messages between them.

``Launch`` is what the environment says, ``Group`` the ranks that have found each other, ``Channel``
their connections. ``Machines`` tells the other ranks what to do, and their ``Follower`` does it.
"""
