// AI SDK: texts, streams, tools with an output type, objects, a context error. Prints the results as JSON.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "spectra",
  baseURL: process.argv[2],
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider("SmolLM2-135M-Instruct");
// The same model, with streams that the server keeps: an event per token, with an id.
const resumable = createOpenAICompatible({
  name: "spectra",
  baseURL: process.argv[2],
  apiKey: "none",
  fetch: (url, init) => {
    const body = { ...JSON.parse(init.body), stream_options: { include_usage: true, resumable: true } };
    return fetch(url, { ...init, body: JSON.stringify(body) });
  },
})("SmolLM2-135M-Instruct");
const common = { model, temperature: 0, maxRetries: 0 };
const question = { ...common, maxOutputTokens: 24, prompt: "What is 12 plus 7?" };
const asked = { ...common, maxOutputTokens: 200, prompt: "Anna is 31 years old and lives in Rome." };
const person = z.object({
  name: z.string().max(12),
  age: z.number().int().min(0).max(120),
  city: z.enum(["Rome", "Oslo", "Lima"]),
});
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.enum(["Rome", "Oslo"]), days: z.number().int().min(1).max(3) }),
  execute: ({ city, days }) => `rain in ${city} for ${days} days`,
});
const callsOf = (steps) => steps.flatMap((step) => step.toolCalls.map((call) => [call.toolName, call.input]));
// The model calls the tool in its first step only: a random one might call it for ever.
const typed = {
  ...asked,
  tools: { weather },
  output: Output.object({ schema: person }),
  stopWhen: stepCountIs(3),
  prepareStep: ({ stepNumber }) => (stepNumber === 0 ? {} : { activeTools: [] }),
};

const results = {};
const whole = await generateText(question);
results.text = whole.text;
results.usage = whole.usage.outputTokens;
results.streamed = await streamText(question).text;
const kept = streamText({ ...question, model: resumable });
results.resumable = [await kept.text, (await kept.usage).outputTokens];

const forced = { ...asked, tools: { weather }, toolChoice: "required" };
results.calls = callsOf((await generateText(forced)).steps);
results.streamedCalls = callsOf(await streamText(forced).steps);
results.resumableCalls = callsOf(await streamText({ ...forced, model: resumable }).steps);
results.object = (await generateText({ ...asked, output: typed.output })).output;
const parts = streamText({ ...asked, output: typed.output });
for await (const part of parts.partialOutputStream) results.streamedObject = part;
const { prepareStep } = typed;
const first = (step) => (step.stepNumber === 0 ? { toolChoice: "required" } : prepareStep(step));
const after = await generateText({ ...typed, prepareStep: first });
results.objectAfterTool = after.output;
results.callsBefore = callsOf(after.steps);
results.callsOrObject = (await generateText(typed)).output;
try {
  await generateText({ ...question, maxOutputTokens: 100_000 }); // more than fit into the context
} catch (error) {
  results.refused = APICallError.isInstance(error) ? [error.statusCode, JSON.parse(error.responseBody).error.code] : [];
}
console.log(JSON.stringify(results));
