"""LangChain's own integration tests once more, with `ChatOpenAI` on `/v1/responses`."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.clients.libraries import langchain_suite


class TestHeadraceResponses(langchain_suite.TestHeadrace):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        params = super().chat_model_params
        penalty = {"frequency_penalty": params.pop("frequency_penalty")}  # no parameter of the SDK's there
        return params | {"use_responses_api": True, "extra_body": penalty}


if __name__ == "__main__":
    pytest.main([__file__, *langchain_suite.OPTIONS], plugins=[langchain_suite.Teller()])
