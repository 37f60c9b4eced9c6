"""How many files and connections the process may have open."""

import resource

OPEN_FILES_MAX = 65_536
"""Enough for all that our limits allow; hard limits of a thousand million are not asked for."""


def allow_open_files() -> int:
    """Raise the soft limit, often 1024, to the hard one, but no further than `OPEN_FILES_MAX`; what it is then.

    Never lowers it. Every request, agent and engine is a connection: without files for them none is answered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)
