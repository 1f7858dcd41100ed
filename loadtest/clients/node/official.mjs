// OpenAI's own Node SDK, any major.

import OpenAI, { BadRequestError, NotFoundError, toFile } from "openai";
import { baseUrl, expect, real, refused, simulated, step } from "./steps.mjs";

const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: "unused" });
const messages = [{ role: "user", content: "What is the capital of France? Answer in one sentence." }];
const short = { model: real, messages, temperature: 0, max_tokens: 24 };
const parameters = {
  type: "object",
  properties: { unit: { enum: ["C", "F"] } },
  required: ["unit"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters, strict: true } }];
const city = {
  type: "object",
  properties: { coastal: { type: "boolean" } },
  required: ["coastal"],
  additionalProperties: false,
};
const ended = ["completed", "incomplete"];

let plain;
await step("chat: plain, with its request id", async () => {
  plain = await client.chat.completions.create(short);
  expect(plain.choices[0].message.content.includes("Paris"), plain.choices[0].message.content);
  expect(plain._request_id, "no request id");
});

await step("chat: a stream says the same, with usage", async () => {
  let text = "";
  let usage;
  const stream = await client.chat.completions.create({
    ...short,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  expect(text === plain.choices[0].message.content, text);
  expect(usage.total_tokens === plain.usage.total_tokens, JSON.stringify(usage));
});

await step("chat: the stream helper's events and final message", async () => {
  const runner = client.chat.completions.stream({ ...short, seed: 1 });
  let grown = "";
  runner.on("content", (delta) => (grown += delta));
  const final = await runner.finalChatCompletion();
  expect(final.choices[0].message.content === grown && grown, grown);
});

await step("chat: a stream that is aborted", async () => {
  const stream = await client.chat.completions.create({ model: simulated, messages, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) break;
  }
  expect(stream.controller.signal.aborted, "not aborted");
});

await step("tools: a required call, and its result back", async () => {
  const asked = { model: real, messages, tools, max_tokens: 60 };
  const { message } = (
    await client.chat.completions.create({ ...asked, tool_choice: "required", parallel_tool_calls: false })
  ).choices[0];
  const [call] = message.tool_calls;
  expect(["C", "F"].includes(JSON.parse(call.function.arguments).unit), call.function.arguments);
  const turns = [...messages, message, { role: "tool", tool_call_id: call.id, content: "20 degrees" }];
  const answer = await client.chat.completions.create({ ...asked, messages: turns, tool_choice: "none" });
  expect(answer.choices[0].message.content, "no answer");
});

await step("tools: runTools calls the function and ends", async () => {
  let called = 0;
  const tool = {
    type: "function",
    function: { ...tools[0].function, parse: JSON.parse, function: () => `${++called} degrees` },
  };
  const runner = client.chat.completions.runTools(
    {
      model: real,
      messages,
      tools: [tool],
      tool_choice: { type: "function", function: { name: "weather" } },
      stream: true,
      max_tokens: 60,
    },
    { maxChatCompletions: 2 },
  );
  await runner.done();
  expect(called === 1, `called ${called} times`);
});

await step("parse: a JSON schema", async () => {
  const reply = await client.chat.completions.parse({
    ...short,
    response_format: { type: "json_schema", json_schema: { name: "city", schema: city, strict: true } },
  });
  expect(typeof reply.choices[0].message.parsed.coastal === "boolean", JSON.stringify(reply.choices[0]));
});

await step("completions: plain and streamed", async () => {
  const asked = { model: real, prompt: "One, two, three,", max_tokens: 5, temperature: 0 };
  const whole = (await client.completions.create({ ...asked, logprobs: 1 })).choices[0];
  expect(whole.logprobs.tokens.length === 5, JSON.stringify(whole));
  let text = "";
  for await (const chunk of await client.completions.create({ ...asked, stream: true })) {
    text += chunk.choices[0]?.text ?? "";
  }
  expect(text === whole.text, text);
});

await step("models: list and retrieve", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  expect(ids.includes(real) && ids.includes(simulated), `${ids}`);
  expect((await client.models.retrieve(real)).id === real, "not found");
});

await step("errors: each its own exception, with code and param", async () => {
  const chats = client.chat.completions;
  const unknown = await refused(() => chats.create({ ...short, model: "gpt-4" }), NotFoundError, "gpt-4");
  expect(unknown.code === "model_not_found" && unknown.param === "model", `${unknown.code}`);
  const hot = await refused(() => chats.create({ ...short, temperature: 9 }), BadRequestError, "temperature");
  expect(hot.param === "temperature" && hot.requestID, `${hot.param}`);
  const long = [{ role: "user", content: "word ".repeat(9000) }];
  await refused(() => chats.create({ ...short, messages: long }), BadRequestError, "maximum context length");
});

await step("embeddings: refused, in words", async () => {
  await refused(() => client.embeddings.create({ model: real, input: "a" }), BadRequestError, "embedding");
});

await step("responses: plain, and the stream helper", async () => {
  const asked = { model: real, input: messages[0].content, temperature: 0, max_output_tokens: 24 };
  const reply = await client.responses.create(asked);
  const stream = client.responses.stream(asked);
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  const final = await stream.finalResponse();
  expect(kinds[0] === "response.created" && ended.includes(final.status), `${kinds[0]} ${final.status}`);
  expect(final.output_text === reply.output_text && reply.output_text, final.output_text);
});

await step("responses: a required call, parsed", async () => {
  const reply = await client.responses.parse({
    model: real,
    input: "Hello",
    tools: [{ type: "function", name: "weather", parameters, strict: true }],
    tool_choice: "required",
    parallel_tool_calls: false,
    max_output_tokens: 60,
  });
  expect(["C", "F"].includes(reply.output[0].parsed_arguments.unit), JSON.stringify(reply.output));
});

await step("responses: found again, and deleted", async () => {
  const reply = await client.responses.create({ model: simulated, input: "Hello", max_output_tokens: 4 });
  expect((await client.responses.retrieve(reply.id)).output_text === reply.output_text, "another text");
  await client.responses.delete(reply.id);
  await refused(() => client.responses.retrieve(reply.id), NotFoundError, "");
});

await step("files: uploaded, read, deleted", async () => {
  const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body: { model: simulated, messages } };
  const text = `${JSON.stringify(line)}\n`;
  const file = await client.files.create({ file: await toFile(Buffer.from(text), "a.jsonl"), purpose: "batch" });
  expect((await (await client.files.content(file.id)).text()) === text, "content");
  expect((await client.files.delete(file.id)).deleted, "not deleted");
});
