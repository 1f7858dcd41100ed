"""LangChain's own integration tests of a chat model, run on `ChatOpenAI` with our address: each test is a step.

What a chat model of ours does not do (images, sounds, PDF files) is not declared, so the suite skips it by itself.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from loadtest.clients.steps import Step, Verdict, server, tell

# Tests that ask for what a model of 135 million parameters does not do by itself, with what they ask for.
NEEDS_A_BETTER_MODEL = {
    "test_json_mode": "asked in words for two strings, it writes JSON of another shape",
    "test_agent_loop": "it answers in words where it is free to call",
}
OPTIONS = (
    "-c", "/dev/null", "-q", "-p", "no:cacheprovider", "-p", "no:warnings", "-o", "asyncio_mode=auto",
    "-o", "asyncio_default_test_loop_scope=module", "-o", "asyncio_default_fixture_loop_scope=module",
)  # fmt: skip


class TestHeadrace(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        told = server()
        return {
            "model": told.real, "base_url": told.v1, "api_key": "unused", "stream_usage": True,
            # What a small model needs: it repeats a call as often as it may, and the words of a string without end.
            "temperature": 0, "frequency_penalty": 0.6, "max_tokens": 300,
            "model_kwargs": {"parallel_tool_calls": False},
        }  # fmt: skip

    @property
    def model_override_value(self) -> str:
        return server().simulated

    @property
    def supports_json_mode(self) -> bool:
        return True


class Teller:
    """A plugin of pytest."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or (report.when != "call" and report.passed):
            return
        name = report.nodeid.split("::")[-1]
        verdict: Verdict = "ok"
        if report.failed:
            verdict = "model" if name.split("[")[0] in NEEDS_A_BETTER_MODEL else "failed"
        tell(Step(name, verdict, "" if report.passed else reason(report)))


def reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return NEEDS_A_BETTER_MODEL.get(report.nodeid.split("::")[-1].split("[")[0]) or str(crash and crash.message)


if __name__ == "__main__":
    pytest.main([__file__, *OPTIONS], plugins=[Teller()])
    sys.exit(0)
