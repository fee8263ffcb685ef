"""The two requests of a pair, without bodies: the peer of the gateway's `Legs`."""

from typing import Any

import msgspec
from msgspec.structs import replace

from expediter.cluster.client import ForwardedRequest, Usage
from expediter.cluster.handover import KVPeer
from expediter.errors import ConfigError
from expediter.request import RequestOutput, SamplingParams
from expediter.simulation.exchange import SimulatedRequest
from expediter.worker.handover.legs import FIELD

ONE_TOKEN = SamplingParams(max_tokens=1, ignore_eos=True)

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_usage: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class SimulatedBodies:
    """See `LegBodies`. Every request has one prompt and is streamed."""

    def may_split(self, request: ForwardedRequest) -> bool:  # noqa: ARG002
        """See `LegBodies`."""
        return True

    def has_one_prompt(self, request: ForwardedRequest) -> bool:  # noqa: ARG002
        """See `LegBodies`."""
        return True

    def is_streamed(self, request: ForwardedRequest) -> bool:  # noqa: ARG002
        """See `LegBodies`."""
        return True

    def prefill_leg(
        self,
        request: ForwardedRequest,
        params: bytes,
        *,
        is_first_token: bool,  # noqa: ARG002
    ) -> ForwardedRequest:
        """See `LegBodies`."""
        assert isinstance(request, SimulatedRequest)
        one = replace(request.request, sampling=ONE_TOKEN)
        return replace(request, request=one, receive=_nobody, params=params)

    def decode_leg(self, request: ForwardedRequest, params: bytes) -> ForwardedRequest:
        """See `LegBodies`."""
        assert isinstance(request, SimulatedRequest)
        return replace(request, params=params)

    def params_of(self, answer: bytes) -> bytes | None:
        """See `LegBodies`."""
        params = bytes(_objects.decode(answer)[FIELD])
        return None if params == b"null" else params

    def usage_of(self, answer: bytes) -> Usage | None:
        """See `LegBodies`."""
        usage = _usage.decode(_objects.decode(answer)["usage"])
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Usage(prompt_tokens=usage["prompt_tokens"], cached_tokens=cached)

    def bootstrap_leg(self, request: ForwardedRequest, peer: KVPeer) -> ForwardedRequest:  # noqa: ARG002
        """No simulated worker speaks SGLang's dialect."""
        raise ConfigError("disaggregation.handover: pairs of SGLang are not simulated")

    def merge_of(self, request: ForwardedRequest) -> None:
        """The decode worker's answer is all there is."""


def _nobody(output: RequestOutput, now: float) -> None:
    """The prefill worker's token is told to the decode worker, not to the client."""
