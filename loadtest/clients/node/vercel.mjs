// Vercel's AI SDK by `@ai-sdk/openai-compatible`: the strictest reader of chunks there is.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { baseUrl, expect, real, refused, simulated, step } from "./steps.mjs";

const provider = createOpenAICompatible({
  baseURL: `${baseUrl}/v1`,
  name: "headrace",
  apiKey: "unused",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider(real);
const prompt = "What is the capital of France? Answer in one sentence.";
const short = { model, prompt, temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
const city = z.object({ coastal: z.boolean() });

let plain;
await step("generateText: text, finish reason, usage", async () => {
  plain = await generateText(short);
  expect(plain.text.includes("Paris"), plain.text);
  expect(["stop", "length"].includes(plain.finishReason), plain.finishReason);
  expect(plain.usage.inputTokens > 10 && plain.usage.outputTokens > 3, JSON.stringify(plain.usage));
});

await step("streamText: says the same, with finish reason and usage", async () => {
  const stream = streamText(short);
  let text = "";
  for await (const part of stream.textStream) text += part;
  expect(text === plain.text, text);
  expect((await stream.finishReason) === plain.finishReason, await stream.finishReason);
  expect((await stream.usage).totalTokens === plain.usage.totalTokens, JSON.stringify(await stream.usage));
});

function weather(calls) {
  return tool({
    description: "The weather now",
    inputSchema: z.object({ indoors: z.boolean() }),
    execute: async (asked) => {
      calls.push(asked);
      return "20 degrees";
    },
  });
}

const looping = {
  ...short,
  maxOutputTokens: 80,
  stopWhen: stepCountIs(2),
  toolChoice: "required",
  // A small model that may make several calls repeats the first until it is cut.
  providerOptions: { headrace: { parallel_tool_calls: false } },
  prepareStep: ({ stepNumber }) => (stepNumber > 0 ? { toolChoice: "none" } : {}),
};

await step("generateText: a tool loop", async () => {
  const calls = [];
  const result = await generateText({ ...looping, tools: { weather: weather(calls) } });
  expect(calls.length >= 1 && typeof calls[0].indoors === "boolean", JSON.stringify(calls));
  expect(result.steps.length === 2 && result.text, `${result.steps.length} steps`);
});

await step("streamText: the same loop streamed", async () => {
  const calls = [];
  const stream = streamText({ ...looping, tools: { weather: weather(calls) } });
  const kinds = new Set();
  for await (const part of stream.fullStream) {
    kinds.add(part.type);
    if (part.type === "error") throw part.error;
  }
  expect(calls.length >= 1 && kinds.has("tool-input-delta") && kinds.has("finish"), [...kinds].join(" "));
});

await step("generateObject: held to a schema", async () => {
  const result = await generateObject({ ...short, schema: city });
  expect(typeof result.object.coastal === "boolean", JSON.stringify(result.object));
});

await step("completion model: text, streamed", async () => {
  const asked = { ...short, model: provider.completionModel(real), prompt: "One, two, three,", maxOutputTokens: 5 };
  const { text } = await generateText(asked);
  let streamed = "";
  for await (const part of streamText(asked).textStream) streamed += part;
  expect(text && streamed === text, streamed);
});

await step("errors: status, and our words", async () => {
  const unknown = { ...short, model: provider("gpt-4") };
  const error = await refused(() => generateText(unknown), APICallError, "gpt-4");
  expect(error.statusCode === 404 && !error.isRetryable, `${error.statusCode}`);
  const long = { ...short, prompt: "word ".repeat(9000) };
  await refused(() => generateText(long), APICallError, "maximum context length");
});

await step("streamText: aborted", async () => {
  const controller = new AbortController();
  const stream = streamText({ ...short, model: provider(simulated), maxOutputTokens: 2000, abortSignal: controller.signal });
  const kinds = [];
  for await (const part of stream.fullStream) {
    kinds.push(part.type);
    if (part.type === "text-delta") controller.abort();
  }
  expect(kinds.at(-1) === "abort", kinds.at(-1));
});
