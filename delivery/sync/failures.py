"""Why a SYNC call got no answer of its endpoint: one exception for each fact, fit to be shown to the publisher."""


class CallFailed(Exception):
    """Base: there is no answer to hand on; `message_id` is what the call is recorded under, 0 if it is not."""

    message_id = 0


class TooManyCalls(CallFailed):
    """As many calls wait in this web process, for all endpoints or for one, as may; nothing was sent or stored."""


class EndpointTimedOut(CallFailed):
    """The endpoint got the request and has not answered within the deadline."""


class EndpointUnreachable(CallFailed):
    """No usable answer: no connection, a broken one, or something that is not HTTP."""


class EndpointNotAllowed(CallFailed):
    """Nothing was sent: the endpoint's address is one that requests do not go to."""


class AnswerTooLarge(CallFailed):
    """The endpoint answered, with more bytes than are passed on."""


class ScriptFailed(CallFailed):
    """The script that answers threw, broke a limit, was lost, or made what is no answer."""


class ScriptNotRun(CallFailed):
    """No process was free to run the script that answers."""


class CallUndecided(CallFailed):
    """The filter of the subscription that might have been the one failed; nothing was sent."""
