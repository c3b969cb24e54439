"""The engine of OpenAI's chat completions, which most servers of models speak, by DSPy 3.4's engine contract.

It calls with httpx, which takes a fraction of LiteLLM's processor time a call and needs no import of LiteLLM;
``litellm_engine`` reaches every other provider. It tries once. Keys are read from the environment when a
request is sent, and never kept.
"""

import functools
import json
import math
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import dspy
import httpx
from dspy import lm15
from dspy.lm15 import OpenAIChatCompat, OpenAIChatLM, Request, Response, TextPart

from memory_program.core.errors import ModelError
from memory_program.core.repetition import find_repetition
from memory_program.core.settings import is_server_address
from memory_program.models.chat_stream import StreamedReply, finish_reason, first_choice, in_band_error
from memory_program.models.endpoint_facts import EndpointFacts, endpoint_facts
from memory_program.models.model_names import OPENAI_URL, is_vllm, openai_url
from memory_program.models.server_errors import (
    SlowReplyError,
    provider_error,
    read_error,
    version_hint,
)
from memory_program.models.usage import is_cut

NO_KEY = "no-key"
"""The key that is sent to servers that need none."""

_OPENAI = "openai/"
_ACCOUNT_HEADERS = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Headers that OpenAI's own client sends, with the variables of their values."""

_CONNECT_TIMEOUT_S = 10.0  # a host that accepts no connection within this time is down
_WATCHED_SHARE = 0.25  # of the timeout: a reply that may take longer than this is streamed
# each of these adds a timeout to the allowed silence: 67 tokens/s at 120 s
_PROMPT_TOKENS_PER_TIMEOUT = 8_000
_REPLY_TOKENS_PER_TIMEOUT = 1_000  # the same of the reply: 8 tokens/s
_MAX_GROWTH = 6.0
_MAX_SILENCES = 10  # a whole reply may take this many times the allowed silence
_CHECKED_CHARS = 400  # new text after which a streamed reply is searched for repetition again
_REMEMBERED_CHARS = 4_000


class ChatCompletionsEngine:
    """OpenAI's chat completions, at OpenAI or another address, over connections that are kept alive.

    A reply that may take long is streamed, so that a server that is slow is told from one that is dead, and a
    reply that repeats itself is stopped. Closing the connection stops the server. Any thread may call. The
    environment's proxies (HTTPS_PROXY, NO_PROXY) are read when the engine is made.
    """

    def __init__(
        self, api_base: str | None, *, key_variable: str | None = None, timeout_s: float, connections: int
    ) -> None:
        """Prepare the client; nothing is connected before the first call.

        ``api_base`` is the address of a server that is not OpenAI's; see ``own_server``.

        Raises:
            ModelError: the environment names a proxy that does not speak HTTP, or unreadable certificates.
        """

        def key() -> str:
            return read_key(key_variable) or read_key("OPENAI_API_KEY") or NO_KEY

        self._is_own = api_base is not None
        self._url = (api_base or openai_url()).rstrip("/")
        self._timeout_s = timeout_s
        check_certificate_file(self._url)
        self._client = make_client(self._url, connections)
        # DSPy's dialect writes the body and reads replies and errors. Some servers ignore
        # ``max_completion_tokens`` in silence, and a reply then runs until the context is full; reasoning
        # models know no other name.
        self._dialects = {
            field: OpenAIChatLM(
                api_key=key, base_url=self._url, compat=OpenAIChatCompat(max_tokens_field=field)
            )
            for field in ("max_tokens", "max_completion_tokens")
        }

    def complete(self, request: Request) -> Response:
        """Answer a request, trying once; a parameter that the model refuses is left out from then on.

        Raises:
            lm15.LM15Error: the call failed; ``retry_after`` is the wait that the provider asked for, if any.
        """
        facts = endpoint_facts(self._url, request.model, is_listed=not self._is_own)
        is_plain = self._is_own and not is_reasoning_model(request.model)
        while True:
            field = facts.token_field or ("max_tokens" if is_plain else "max_completion_tokens")
            sent = facts.adapted(request)
            try:
                return self._ask(sent, facts, self._dialects[field])
            except lm15.InvalidRequestError as error:
                if not facts.learn_refusal(error, sent, field):
                    raise

    def _ask(self, request: Request, facts: EndpointFacts, dialect: OpenAIChatLM) -> Response:
        streams = facts.should_stream(request.config.max_tokens, self._timeout_s * _WATCHED_SHARE)
        name = request.model.removeprefix(_OPENAI)
        sent = dialect.build_request(replace(request, model=name), stream=streams)
        silence_s = allowed_silence_s(self._timeout_s, request)
        connect_s = min(self._timeout_s, _CONNECT_TIMEOUT_S)
        # callers wait for their turn before they come here, so the pool needs no timeout
        timeout = httpx.Timeout(silence_s, connect=connect_s, pool=None)
        headers = dict(sent.headers) | account_headers(self._url)
        started, reply, server = time.monotonic(), None, urlsplit(sent.url).netloc
        try:
            with self._client.stream(
                "POST", sent.url, content=sent.body, headers=headers, timeout=timeout
            ) as reply:
                if not reply.is_success:
                    reply.read()
                    raise self._refusal(reply, sent.url, headers, name)
                body = self._read(reply, silence_s * _MAX_SILENCES, prompt_chars=len(sent.body or b""))
        except httpx.ConnectTimeout as error:
            raise lm15.TransportError(f"failed to connect to {server}: {error}") from error
        except httpx.TimeoutException as error:
            waited_s = time.monotonic() - started
            if reply is None:
                raise lm15.TimeoutError(
                    f"no reply in time from {server}: no byte in {waited_s:.3g} s"
                ) from error
            raise _slow(server, f"it began to reply and then was silent for {silence_s:.3g} s") from error
        except httpx.ConnectError as error:
            if certificate_error(error):
                raise lm15.ConfigurationError(untrusted_certificate(server, error)) from error
            raise lm15.TransportError(f"failed to connect to {server}: {error}") from error
        except httpx.RequestError as error:
            raise lm15.TransportError(f"the connection to {server} failed: {error}") from error
        response = read_completion(body, request, sent.url)
        facts.note_speed(response.usage.output_tokens or 0, time.monotonic() - started)
        return response

    def _read(self, reply: httpx.Response, longest_s: float, *, prompt_chars: int) -> dict[str, Any]:
        """Read a reply, whole or streamed.

        Raises:
            lm15.LM15Error: it is not a chat completion, takes longer than ``longest_s``, or ends too early.
        """
        began, whole = time.monotonic(), bytearray()
        is_called_stream = "text/event-stream" in reply.headers.get("content-type", "")
        is_stream: bool | None = None
        streamed = StreamedReply()
        for received in _until_done(reply, streamed):
            if time.monotonic() - began > longest_s:
                raise _slow(reply.url.netloc.decode(), f"its reply was not complete after {longest_s:.3g} s")
            if is_stream is None:  # some servers name the wrong content type: an error as a stream
                is_stream = is_called_stream and received.lstrip()[:1] != b"{"
            if not is_stream:
                whole += received
                continue
            streamed.feed(received)
            if streamed.new_chars >= _CHECKED_CHARS and find_repetition(streamed.written(_REMEMBERED_CHARS)):
                body = streamed.body(is_stopped=True)
                # the server had no time to count: about four characters of the prompt are a token
                body["usage"] = {"prompt_tokens": prompt_chars // 4, "completion_tokens": streamed.events}
                return body
        if whole.lstrip().startswith(b"data:"):  # or a stream as plain text
            is_stream = True
            streamed.feed(bytes(whole))
        if is_stream or (is_called_stream and not whole):
            streamed.finish()
            if streamed.error is not None:
                return {"error": streamed.error}
            if not streamed.is_complete:
                raise lm15.TransportError(f"the reply of {reply.url.netloc.decode()} broke off")
            return streamed.body()
        text = whole.decode(errors="replace")
        try:
            body = json.loads(text)
            if not isinstance(body, dict):
                raise TypeError(f"expected a JSON object, got {type(body).__name__}")
        except (TypeError, ValueError, RecursionError) as error:
            # such as a gateway's error page: the next try may get through
            said = f"it says {read_error(text).message!r}" if text.strip() else "it is empty"
            hint = version_hint(self._url)
            raise lm15.ServerError(
                f"the reply of {reply.url} is not a chat completion: {said}{hint}"
            ) from error
        return cast(dict[str, Any], body)

    def _refusal(
        self, reply: httpx.Response, url: str, headers: dict[str, str], model: str
    ) -> lm15.ProviderError:
        """Make the error of a refused call; for an unknown model or path, look what the server has."""
        wait_s = retry_after_s(reply.headers)
        error = provider_error(reply.status_code, read_error(reply.text), url=url, retry_after=wait_s)
        if reply.next_request is not None:  # not followed: the key would go to an address that nobody named
            place = str(reply.next_request.url).removesuffix("/chat/completions")
            error.message += f"; it redirects to {place!r}: give that address, if it is the server's"
        if reply.status_code in (404, 405) or isinstance(error, lm15.UnsupportedModelError):
            try:
                listed = self._client.get(f"{self._url}/models", headers=headers, timeout=_CONNECT_TIMEOUT_S)
                served = [str(entry["id"]) for entry in listed.json()["data"]]
            except (httpx.HTTPError, ValueError, TypeError, KeyError):
                served = list[str]()
            if served and model not in served:
                names = ", ".join(f"'{_OPENAI}{name}'" for name in served[:8])
                error.message += f"; this server has {names}"
            elif not served:
                error.message += version_hint(self._url)
        return error


def allowed_silence_s(timeout_s: float, request: Request) -> float:
    """Return the longest silence of a server: it grows with the prompt and with the limit of the reply.

    A server may read the whole prompt, wait for its turn, or write the whole reply before its first byte.
    """
    texts = [
        part.text for message in request.messages for part in message.parts if isinstance(part, TextPart)
    ]
    prompt_tokens = (len(request.system or "") + sum(map(len, texts))) / 4
    growth = prompt_tokens / _PROMPT_TOKENS_PER_TIMEOUT
    growth += (request.config.max_tokens or 0) / _REPLY_TOKENS_PER_TIMEOUT
    return timeout_s * min(1 + growth, _MAX_GROWTH)


def read_completion(body: dict[str, Any], request: Request, url: str) -> Response:  # Any: JSON
    """Read a chat completion.

    Raises:
        lm15.ProviderError: it is none, carries an error, or was ended by a content filter.
    """
    try:
        check_body(body, url)
        response = lm15.response_from_openai_chat(
            body, model=request.model, response_format=request.config.response_format
        )
    except (TypeError, ValueError, KeyError, AttributeError) as malformed:
        begin = json.dumps(body)[:200]
        raise lm15.ServerError(
            f"the reply of {url} is not a chat completion: {malformed}; it begins with {begin!r}"
        ) from malformed
    return with_cut(response, body)


def check_body(body: dict[str, Any], url: str) -> None:  # Any: JSON
    """Check that a reply with status 200 is one.

    Raises:
        lm15.ProviderError: it carries an error, has no choices, or was ended by a content filter.
    """
    error = in_band_error(body)
    if error is not None:
        said = read_error(json.dumps({"error": error}))
        status = int(said.code) if said.code.isdecimal() and 400 <= int(said.code) < 600 else 502
        raise provider_error(status, said, url=url)
    if not body.get("choices"):
        said = read_error(json.dumps(body)).message
        raise lm15.ServerError(f"the reply of {url} has no choices: it says {said!r}")
    if first_choice(body).get("finish_reason") == "content_filter":
        raise lm15.ProviderError("the provider's content filter ended the reply")


def with_cut(response: Response, body: dict[str, Any]) -> Response:  # Any: JSON
    """Give a cut reply its finish reason, whatever the provider calls it, and with tool calls too."""
    is_short = is_cut(finish_reason(first_choice(body)))
    return replace(response, finish_reason="length") if is_short else response


def _until_done(reply: httpx.Response, streamed: StreamedReply) -> Iterator[bytes]:
    """Yield the bytes of a reply. A stream that said its end may break off: some servers do not close it."""
    try:
        yield from reply.iter_bytes()
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ReadTimeout):
        if not streamed.is_done:
            raise


def _slow(server: str, what: str) -> SlowReplyError:
    return SlowReplyError(
        f"{server} is too slow: {what}. It is not asked again, since that would take as long: lower "
        "--max-reply-tokens, or --concurrency if it answers many calls at once"
    )


def certificate_error(error: BaseException | None) -> bool:
    """Tell if a connection failed because the certificate of the server is not trusted."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return error is not None


def untrusted_certificate(server: str, error: BaseException) -> str:
    """Say what to do about a certificate that is not trusted."""
    if "mismatch" in str(error):
        return f"the certificate of {server} is for another host ({error}): use the name that it is made for"
    return (
        f"the certificate of {server} is not trusted ({error}): if the server is yours, set SSL_CERT_FILE to "
        "the PEM file of the authority that signed it"
    )


def check_certificate_file(url: str) -> None:
    """Check that SSL_CERT_FILE holds certificates, if it is set: OpenSSL ignores a file that it cannot read.

    Raises:
        ModelError: it cannot be read, and the address is one of HTTPS.
    """
    named = os.environ.get("SSL_CERT_FILE")
    if not named or not url.startswith("https:"):
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(named)
    except OSError as error:
        raise ModelError(
            f"SSL_CERT_FILE={named!r} cannot be read ({error.strerror or error}): name the PEM file of the "
            "authorities to trust"
        ) from error


def read_key(variable: str | None) -> str:
    """Read a key from the environment; empty if it has none.

    Raises:
        ModelError: it cannot be sent in a header.
    """
    key = os.environ.get(variable or "", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ModelError(
            f"{variable} holds a character that no key has, such as a curly quote or a line break: set it "
            "again"
        )
    return key


def is_openai(name: str) -> bool:
    """Tell if a model is called without LiteLLM."""
    return name.startswith(_OPENAI) or is_vllm(name)


@functools.cache
def is_reasoning_model(name: str) -> bool:
    """Tell if DSPy counts a model as a reasoning one: it names their token limit differently."""
    return "max_completion_tokens" in dspy.LM(name).kwargs


def account_headers(url: str) -> dict[str, str]:
    """Read the headers of an account at OpenAI from the environment; none for any other address."""
    if url != OPENAI_URL:
        return {}
    return {k: os.environ[v] for k, v in _ACCOUNT_HEADERS.items() if os.environ.get(v)}


def make_client(url: str, connections: int) -> httpx.Client:
    """Make a client that keeps connections to an address alive, through the environment's proxy if any.

    Raises:
        ModelError: the environment names a proxy that does not speak HTTP.
    """
    address, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all") or None
    if address.hostname is None or proxy_bypass(address.hostname):
        proxy = None
    if proxy is not None:
        proxy = proxy if "://" in proxy else f"http://{proxy}"  # as other clients read it
        variable = f"{address.scheme.upper()}_PROXY"
        advice = f"set {variable} to http://HOST:PORT, or bypass it: NO_PROXY={address.hostname}"
        if not is_server_address(f"http://{proxy.partition('://')[2]}"):  # it may hold a password
            raise ModelError(f"the environment's proxy is no address: {advice}")
        scheme, host = urlsplit(proxy).scheme, urlsplit(proxy).hostname
        if scheme != "http":
            raise ModelError(
                f"the environment's proxy at {host!r} is one for {scheme!r}, expected 'http': {advice}"
            )
    return httpx.Client(
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        verify=trusted_certificates(),
        proxy=proxy,
        trust_env=False,
    )


def trusted_certificates() -> ssl.SSLContext:
    """Trust the certificates of certifi, of the system, and of SSL_CERT_FILE.

    Some Pythons find none of the system's, such as that of python.org on macOS.
    """
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read a Retry-After header, in seconds or as a date; None if it is missing or makes no sense."""
    said = headers.get("retry-after", "")
    try:
        seconds = float(said)
    except ValueError:
        try:
            until = parsedate_to_datetime(said)
        except ValueError:
            return None
        seconds = max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
