"""Every way Expediter fails.

    ExpediterError
    +-- ConfigError              the operator can fix it
    +-- RequestError             the caller can fix it             4xx
    |   +-- PromptTooLong
    |   +-- BodyTooLarge                                          413
    |   +-- UnknownModel
    |   +-- UnsupportedParameter
    |   +-- Unauthorized
    |   +-- RequestRejected      admission said no; retry_after    429
    +-- ClusterError             the fleet failed a valid request  5xx
    |   +-- WorkerUnavailable    nobody can take it now
    |   +-- WorkerLost           the worker that had it is gone
    |   |   +-- WorkerRefused    it never had it: no connection could be made
    |   |   +-- WorkerDeclined   it said so: it takes no requests now           503
    |   +-- WorkerSilent         the worker said nothing for too long   504
    |   +-- TransferError        KV could not be had from another worker: compute it here
    |       +-- LeaseExpired     its blocks may be something else's by now
    |       +-- LayoutMismatch   its KV means something else
    +-- EngineFailed             the model threw on a valid request     500
    +-- EngineLost               a part of the engine is gone: no step can run any more
    +-- GatewayFailed            a gateway cannot go on serving
    +-- ModelLoadError           a checkpoint cannot be used
    +-- WorkloadError            a row of a trace cannot be used
    +-- EndpointError            what is to be measured does not answer, or not as it should
    +-- SimulationStalled        virtual time cannot go on: a bug in what is simulated

An exception means "failed"; "not now" is `None`. Status codes live here and nowhere else.
"""


class ExpediterError(Exception):
    """The root: catch it to catch all of ours."""

    status = 500
    kind = "internal_error"


class ConfigError(ExpediterError):
    """A configuration value is wrong; the message says where and what is allowed."""

    kind = "config_error"


class GatewayFailed(ExpediterError):
    """A gateway's background work ended, so it would serve ever worse; the message says why."""

    kind = "gateway_failed"


class ModelLoadError(ExpediterError):
    """A model's files cannot be read or describe an architecture we do not run."""

    kind = "model_load_error"


class WorkloadError(ExpediterError):
    """A row of a workload's file cannot be used; the message begins with the file and line."""

    kind = "workload_error"


class EndpointError(ExpediterError):
    """The endpoint that is to be measured cannot be; the message says why."""

    kind = "endpoint_error"


class SimulationStalled(ExpediterError):
    """Nothing is left to happen, or time no longer passes; the message says which tasks wait."""

    kind = "simulation_stalled"


class RequestError(ExpediterError):
    """The request is at fault. `param` names the field, as OpenAI's errors do."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(RequestError):
    """Prompt and output together do not fit the model's context or the worker's memory."""


class BodyTooLarge(RequestError):
    """The request's body is longer than the server takes."""

    status = 413


class UnsupportedParameter(RequestError):
    """A parameter has a value outside what is allowed."""


class UnknownModel(RequestError):
    """No worker serves the model."""

    status = 404
    kind = "not_found_error"


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    status = 401
    kind = "authentication_error"


class RequestRejected(RequestError):
    """Admission refused a request it could not serve in time."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineFailed(ExpediterError):
    """The model failed while it computed the request."""

    kind = "server_error"


class EngineLost(ExpediterError):
    """A process that computes a part of every step is gone or out of step; the message says which.

    Whoever has the engine can only start anew.
    """

    kind = "server_error"


class ClusterError(ExpediterError):
    """The request was valid and the fleet could not serve it."""

    status = 502
    kind = "server_error"


class WorkerUnavailable(ClusterError):
    """No worker is ready to take the request."""

    status = 503
    kind = "service_unavailable"


class WorkerLost(ClusterError):
    """The worker that was serving the request went away."""

    kind = "worker_lost"


class WorkerRefused(WorkerLost):
    """No connection to the worker could be made, so the request was certainly not executed."""


class WorkerDeclined(WorkerLost):
    """The worker answered that it does not take the request, so it was not executed."""

    status = 503
    kind = "service_unavailable"


class WorkerSilent(ClusterError):
    """The worker accepted the request and then said nothing for longer than allowed."""

    status = 504
    kind = "timeout_error"


class TransferError(ClusterError):
    """KV could not be had from the worker that computed it; who waits for it can compute it too."""

    kind = "transfer_failed"


class LeaseExpired(TransferError):
    """The other worker no longer promises that the blocks hold what was asked for."""


class LayoutMismatch(TransferError):
    """The other worker's KV is of another model, or arranged so that ours cannot be made of it."""
