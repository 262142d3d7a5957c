// Drives one Node client through one streaming request: `node drive.mjs CLIENT ASK`.
//
// Says a line of JSON for every piece of text, {"left": true} when it has stopped on its own, and in the end what
// it was told. After leaving it stays until its input is closed, so that the end of the process closes nothing
// that the client should have closed.

import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { jsonSchema, streamText, tool } from "ai";

const [client, text] = process.argv.slice(2);
const ask = JSON.parse(text);
const told = { finish: null, tokens: null, call: null, failure: null };
let pieces = 0;

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");

function hear(piece) {
  pieces += 1;
  say({ piece });
}

const leaves = () => ask.leave_after !== null && pieces >= ask.leave_after;

async function left() {
  say({ left: true });
  for await (const _ of process.stdin);
}

// Node gives up a request after 300 s without a byte. `fetch` has no option for that: its dispatcher has.
async function limitSilence() {
  const dispatcher = Symbol.for("undici.globalDispatcher.1");
  await fetch("data:,"); // makes the dispatcher
  const { constructor: Agent } = globalThis[dispatcher];
  globalThis[dispatcher] = new Agent({ headersTimeout: ask.idle_ms, bodyTimeout: ask.idle_ms });
}

function openai() {
  return new OpenAI({
    baseURL: `${ask.base}/v1`,
    apiKey: ask.key,
    maxRetries: 0,
    defaultHeaders: ask.headers,
  });
}

function failed(error) {
  told.failure = {
    kind: error.constructor.name,
    status: error.status ?? null,
    code: error.code ?? null,
    request_id: error.requestID ?? null,
    message: error.message,
  };
}

async function chat() {
  const stream = await openai().chat.completions.create({
    model: ask.model,
    messages: ask.messages,
    max_tokens: ask.max_tokens ?? undefined,
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
    tools: ask.tools
      ? [{ type: "function", function: { name: ask.tool, parameters: ask.parameters } }]
      : undefined,
  });
  for await (const chunk of stream) {
    told.tokens = chunk.usage?.completion_tokens ?? told.tokens;
    for (const { delta, finish_reason } of chunk.choices) {
      told.finish = finish_reason ?? told.finish;
      if (delta.content) hear(delta.content);
      for (const call of delta.tool_calls ?? []) {
        const [name, given] = told.call ?? ["", ""];
        told.call = [name + (call.function.name ?? ""), given + (call.function.arguments ?? "")];
      }
    }
    if (leaves()) {
      stream.controller.abort();
      return left();
    }
  }
}

async function responses() {
  const stream = openai().responses.stream({
    model: ask.model,
    input: ask.prompt,
    max_output_tokens: ask.max_tokens ?? undefined,
    temperature: 0,
    tools: ask.tools
      ? [{ type: "function", name: ask.tool, parameters: ask.parameters, strict: true }]
      : undefined,
  });
  let sum = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") {
      sum += event.delta;
      hear(event.delta);
    } else if (event.type === "response.failed") {
      const { code, message } = event.response.error;
      told.failure = { kind: event.type, status: null, code, request_id: null, message };
    }
    if (leaves()) {
      stream.abort();
      return left();
    }
  }
  if (told.failure) return;
  const final = await stream.finalResponse();
  if (final.output_text !== sum) throw new Error(`the sum is ${final.output_text}, not ${sum}`);
  told.finish = final.status;
  told.tokens = final.usage.output_tokens;
  for (const item of final.output) {
    if (item.type === "function_call") told.call = [item.name, item.arguments];
  }
}

async function aiSdk() {
  const provider = createOpenAICompatible({
    name: "slotgate",
    baseURL: `${ask.base}/v1`,
    apiKey: ask.key,
    headers: ask.headers,
    includeUsage: true,
  });
  const controller = new AbortController();
  const result = streamText({
    model: provider.chatModel(ask.model),
    messages: ask.messages,
    maxOutputTokens: ask.max_tokens ?? undefined,
    temperature: 0,
    maxRetries: 0,
    abortSignal: controller.signal,
    tools: ask.tools ? { [ask.tool]: tool({ inputSchema: jsonSchema(ask.parameters) }) } : undefined,
    onError: () => {},
  });
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") hear(part.text);
    if (part.type === "tool-call") told.call = [part.toolName, JSON.stringify(part.input)];
    if (part.type === "finish") {
      told.finish = part.rawFinishReason ?? part.finishReason;
      told.tokens = part.totalUsage.outputTokens ?? null;
    }
    if (part.type === "error") {
      const { error } = part;
      const said = error.data?.error ?? error;
      told.failure = {
        kind: error.name ?? error.constructor.name,
        status: error.statusCode ?? null,
        code: said.code ?? null,
        request_id: error.responseHeaders?.["x-request-id"] ?? null,
        message: said.message ?? String(error),
      };
    }
    if (leaves()) {
      controller.abort();
      return left();
    }
  }
}

if (ask.idle_ms !== null) await limitSilence();
try {
  await { chat, responses, "ai-sdk": aiSdk }[client]();
} catch (error) {
  if (!(error instanceof OpenAI.APIError)) throw error;
  failed(error);
}
say({ told });
