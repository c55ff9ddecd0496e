"""Circuit breakers: acorn skips a model for some seconds after several failures in a row.

Each model has a circuit, as in an electric circuit breaker: a closed circuit allows requests, and an open circuit
blocks them. The circuit opens after several failures in a row. A failure is a request that still fails after its
retries. A request that the model rejects permanently does not count as a failure. After some seconds, the open circuit
allows one trial request, and it closes if the trial request succeeds.

`fallback.py` checks the circuit before it sends a request. Each combination of a model and a server address has one
circuit, which all runs of the process share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from weakref import ref

from acorn._base.log import logger
from acorn.types import JsonObject, is_json_object

FAILURES = 3
"""The number of failures in a row that opens a circuit."""
OPEN_SECONDS = 30.0
"""The seconds until an open circuit allows a trial request."""


class CircuitPass:
    """The permission to send one request to a model.

    The sender uses it to report whether the request succeeded.
    """

    __slots__ = ("__weakref__", "_circuit")

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit

    def report_success(self, name: str) -> None:
        """Report that the model answered.

        `name` is the model name for the log.
        """
        self._circuit.close(name)

    def report_failure(self, name: str) -> None:
        """Report that the request failed with an error that may be temporary.

        `name` is the model name for the log.
        """
        self._circuit.count_failure(self, name)

    def report_rejection(self) -> None:
        """Report that the model rejected the request permanently, which does not count as a failure of the model."""
        self._circuit.reset_failures(self)

    def release(self) -> None:
        """Report that the request was abandoned, so that another request can become the trial request."""
        self._circuit.release(self)


class Circuit:
    """The circuit breaker of one model.

    It decides whether acorn may send a request to the model.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until: float | None = None
        self._trial: ref[CircuitPass] | None = None
        """A weak reference to the pass of the trial request, so that an abandoned trial request ends its trial."""

    @property
    def allows_request(self) -> bool:
        """True if the circuit is closed, or if it may allow a trial request now."""
        until = self._open_until
        return until is None or (self._clock() >= until and self._current_trial() is None)

    def enter(self, *, is_forced: bool = False) -> CircuitPass | None:
        """Return the permission to send a request, or None if the circuit is open and allows no trial request now.

        If `is_forced` is true, the result is never None.
        """
        new_pass = CircuitPass(self)
        if self._open_until is None:
            return new_pass
        with self._lock:
            if self.allows_request:
                self._trial = ref(new_pass)
                return new_pass
        return new_pass if is_forced else None

    def _current_trial(self) -> CircuitPass | None:
        return None if self._trial is None else self._trial()

    def close(self, name: str) -> None:
        if self._open_until is None and not self._failures:
            return
        with self._lock:
            was_open = self._open_until is not None
            self._failures, self._open_until, self._trial = 0, None, None
        if was_open:
            logger.info("`%s` answered again, so its circuit breaker is closed.", name)

    def count_failure(self, circuit_pass: CircuitPass, name: str) -> None:
        with self._lock:
            is_open = self._open_until is not None
            if is_open and self._current_trial() is not circuit_pass:
                return  # The request started before the circuit opened, or was sent despite the open circuit.
            self._failures += 1
            if not is_open and self._failures < FAILURES:
                return
            failures, self._open_until, self._trial = self._failures, self._clock() + OPEN_SECONDS, None
        logger.info(
            "The circuit breaker skips `%s` for %g s, because the model failed %d times in a row.",
            name,
            OPEN_SECONDS,
            failures,
        )

    def reset_failures(self, circuit_pass: CircuitPass) -> None:
        if self._open_until is None:
            self._failures = 0
        self.release(circuit_pass)

    def release(self, circuit_pass: CircuitPass) -> None:
        with self._lock:
            if self._current_trial() is circuit_pass:
                self._trial = None


class CircuitRegistry:
    """A registry that contains the circuit breaker of each model.

    If `model` is set to a model id or a model dict, the registry finds the circuit by the model id and the server
    address. If `model` is set to a model object, the registry finds the circuit by the `id()` of the object.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address: dict[tuple[str, str], Circuit] = {}
        self._by_object: dict[int, tuple[ref[object], Circuit]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_address) + len(self._by_object)

    def of(self, declared: object) -> Circuit:
        """Return the circuit for a value of the `model` setting: a model id, a model dict or a model object."""
        if isinstance(declared, str) or is_json_object(declared):
            return self._by_address.setdefault(model_address(declared), Circuit(self._clock))
        object_id = id(declared)
        with self._lock:
            entry = self._by_object.get(object_id)
            if entry is not None and entry[0]() is declared:
                return entry[1]
            circuit = Circuit(self._clock)
            # An object with slots does not support weak references. Its circuit exists for one run only.
            with suppress(TypeError):
                self._by_object[object_id] = (ref(declared, lambda _: self._remove(object_id)), circuit)
            return circuit

    def _remove(self, object_id: int) -> None:
        entry = self._by_object.get(object_id)
        if entry is not None and entry[0]() is None:  # A newer object may have the same id.
            del self._by_object[object_id]

    def clear(self) -> None:
        """Remove all circuits.

        Tests call this method because a new test server may get the address of an earlier server, and with it the open
        circuit of the earlier server.
        """
        self._by_address.clear()
        self._by_object.clear()


def model_address(declared: str | JsonObject) -> tuple[str, str]:
    """Return the model id and the custom server address in a model dict.

    The address is "" if the user set none.
    """
    config = {"model": declared} if isinstance(declared, str) else declared
    address = config.get("base_url") or config.get("api_base") or ""
    return str(config.get("model") or config.get("id")), str(address).rstrip("/")


CIRCUITS = CircuitRegistry()
"""The circuits of this process, which all runs share because an outage of a model affects every run."""
