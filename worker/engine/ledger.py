"""The requests an engine works on, and what it says of them: journal frames, in the order that the wire asks for.

Kept by every engine, whoever schedules and computes. Invariants: a request that was not forgotten ends with exactly one
output that has an outcome; after it was forgotten no output names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.errors import HeadraceError
from shared.schemas import (
    ChoiceEndFrame,
    EndFrame,
    ErrorInfo,
    EventFrame,
    Outcome,
    PromptFrame,
    TokenLogprobs,
    TokensFrame,
)
from worker.engine.outputs import StepOutput
from worker.engine.request import LiveRequest, Sequence


class Ledger:
    """`live` is by request id. `_outputs` is what the next `take` gives: filled by a step, and by what ends at the
    door."""

    def __init__(self, unix_ms: Callable[[], int]) -> None:
        self.live: dict[str, LiveRequest] = {}
        self._outputs: dict[str, StepOutput] = {}
        self._unix_ms = unix_ms

    @property
    def is_empty(self) -> bool:
        return not (self.live or self._outputs)

    def open(self, live: LiveRequest) -> None:
        self.live[live.request.request_id] = live

    def forget(self, request_id: str) -> list[Sequence]:
        """Its choices, for whoever computes them; none of a request unknown."""
        self._outputs.pop(request_id, None)
        live = self.live.pop(request_id, None)
        return [] if live is None else live.sequences

    def refuse(self, request_id: str, error: HeadraceError) -> None:
        """The whole request fails. It must not be live."""
        output = self._output_of(request_id)
        output.frames.append(EndFrame(Outcome.FAILED, None, ErrorInfo(error.code, error.message)))
        output.outcome = Outcome.FAILED

    def tell_preempted(self, sequence: Sequence) -> None:
        event = EventFrame("preempted", {"choice": sequence.choice, "at": self._unix_ms()})
        self._output_of(sequence.request_id).frames.append(event)

    def tell_prompt(self, sequence: Sequence, logprobs: Iterable[TokenLogprobs]) -> None:
        """Of the prompt's next tokens."""
        told = tuple(logprobs)
        sequence.num_scored_tokens += len(told)
        self._output_of(sequence.request_id).frames.append(PromptFrame(told))

    def tell_tokens(
        self, sequence: Sequence, token_ids: list[int], text: str, logprobs: TokenLogprobs | None = None
    ) -> None:
        """What a live choice got, and its end where that was it. `logprobs` are of the first of `token_ids`."""
        live, output = self.live[sequence.request_id], self._output_of(sequence.request_id)
        if not live.has_first_token:
            live.has_first_token = True
            output.frames.append(EventFrame("first_token", {"at": self._unix_ms()}))
        told = None if logprobs is None or token_ids[-1] in sequence.stop_ids else (logprobs,)
        output.frames.append(TokensFrame(sequence.choice, token_ids, text, told))
        output.num_tokens += len(token_ids)
        if sequence.finish_reason is not None:
            output.frames.append(ChoiceEndFrame(sequence.choice, sequence.finish_reason))

    def end_resumed(self, sequence: Sequence) -> None:
        """The journaled tokens ended the choice, but the journal was cut before it said so."""
        frames = self._output_of(sequence.request_id).frames
        text = sequence.detokenizer.take_owed()
        if text:
            frames.append(TokensFrame(sequence.choice, [], text))
        frames.append(ChoiceEndFrame(sequence.choice, str(sequence.finish_reason)))

    def end_without_tokens(self, live: LiveRequest) -> None:
        """Of no tokens all choices are over, once the prompt is told."""
        for sequence in live.sequences:
            sequence.finish_reason = "length"
            self.end_resumed(sequence)
        self.settle_if_ended(live)

    def settle_if_ended(self, live: LiveRequest) -> None:
        if not live.is_ended:
            return
        request_id = live.request.request_id
        output = self._output_of(request_id)
        output.frames.append(EndFrame(Outcome.FINISHED, live.usage()))
        output.outcome = Outcome.FINISHED
        del self.live[request_id]

    def take(self) -> list[StepOutput]:
        """What was said since the last time."""
        outputs, self._outputs = self._outputs, {}
        return list(outputs.values())

    def _output_of(self, request_id: str) -> StepOutput:
        output = self._outputs.get(request_id)
        if output is None:
            output = self._outputs[request_id] = StepOutput(request_id)
        return output
