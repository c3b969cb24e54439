"""Facts about a model at an address, learned while it is called: refused parameters, streaming and speed."""

import functools
import logging
import threading
from dataclasses import replace

from dspy import lm15

from memory_program.models.server_errors import is_required, refused_parameter
from memory_program.models.usage import takes_sampling_parameters

_logger = logging.getLogger(__name__)
_SAMPLING = ("temperature", "top_p")
_DROPPABLE = (*_SAMPLING, "seed", "frequency_penalty", "presence_penalty", "stop")
_TOKEN_FIELDS = ("max_tokens", "max_completion_tokens")
_FADE = 0.9  # of the calls so far, whenever another one is counted


class EndpointFacts:
    """The facts of one model at one address; any thread may use them."""

    def __init__(self, model: str, *, is_listed: bool) -> None:
        """Begin with what LiteLLM's list of models knows, if the model is the one that is listed there."""
        self.model = model
        self.token_field: str | None = None
        """The name of the limit of tokens, once a server refused the other one."""
        self.can_stream = True
        self._dropped: set[str] = set()
        self._tokens = self._seconds = 0.0
        self._lock = threading.Lock()
        if is_listed and not takes_sampling_parameters(model):
            self._dropped.update(_SAMPLING)
            _logger.warning("%s takes no temperature: it runs at its own", model)

    def adapted(self, request: lm15.Request) -> lm15.Request:
        """Return a request without the parameters that the model refuses."""
        if not self._dropped:
            return request
        left_out: dict[str, object] = {name: () if name == "stop" else None for name in self._dropped}
        return replace(request, config=replace(request.config, **left_out))  # pyright: ignore[reportArgumentType]  # by name

    def learn_refusal(self, error: lm15.LM15Error, sent: lm15.Request, token_field: str) -> bool:
        """Take a refused parameter out of all further calls; False if the error is about something else."""
        names = [name for name in _DROPPABLE if getattr(sent.config, name) not in (None, ())]
        if sent.config.max_tokens is not None:
            names.append(token_field)
        name = refused_parameter(error, (*names, *(("stream_options", "stream") if self.can_stream else ())))
        other = _TOKEN_FIELDS[token_field == _TOKEN_FIELDS[0]]
        if name is None and token_field in names and is_required(other, error):
            name = token_field
        if name is None:
            return False
        with self._lock:
            if name in _TOKEN_FIELDS:
                if self.token_field == name:  # both were refused
                    return False
                if self.token_field is None:
                    _logger.warning("%s does not take %s: it is sent as %s", self.model, name, other)
                self.token_field = other
            elif name.startswith("stream"):
                _logger.warning("%s does not take %s: its replies are not streamed", self.model, name)
                self.can_stream = False
            elif name not in self._dropped:
                _logger.warning("%s does not take %s: it is no longer sent", self.model, name)
                self._dropped.add(name)
        return True

    def should_stream(self, max_tokens: int | None, patience_s: float) -> bool:
        """Tell if a reply can take so long that it must be watched while it is written.

        A watched reply costs processor time for each token. One that comes within ``patience_s`` even at its
        limit, at the speed seen so far, is taken as a whole.
        """
        if not self.can_stream:
            return False
        if max_tokens is None or not self._tokens:
            return True
        return max_tokens * self._seconds / self._tokens > patience_s

    def note_speed(self, tokens: int, seconds: float) -> None:
        """Count the tokens and the time of one reply."""
        if tokens:
            self._tokens = self._tokens * _FADE + tokens
            self._seconds = self._seconds * _FADE + seconds


@functools.cache
def endpoint_facts(url: str, model: str, *, is_listed: bool) -> EndpointFacts:
    """Return the facts of a model at an address, shared by all who call it."""
    return EndpointFacts(model, is_listed=is_listed)
