"""Several machines that run one model together: who belongs to them, and what they tell each other.

``Launch`` is what the environment says, ``Group`` the ranks that have found each other, ``Channel``
the messages between them. Must never know what is in a message.
"""
