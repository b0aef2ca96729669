// Asks for objects, a stream of one and a tool call with the Vercel AI SDK; prints them as JSON.
//     node generate_object.mjs URL
import { generateObject, generateText, streamObject, tool } from 'ai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { z } from 'zod';

const provider = createOpenAICompatible({
  name: 'kvasir', baseURL: process.argv[2] + '/v1', apiKey: 'none', supportsStructuredOutputs: true,
});
const model = provider('default');
const schema = z.object({
  city: z.string().max(12), days: z.number().int().min(1).max(9), unit: z.enum(['c', 'f']).optional(),
});
const asked = { model, schema, prompt: 'Anna lives in Oslo. Where does Anna live?', temperature: 0, maxOutputTokens: 200 };

const { object, usage, finishReason } = await generateObject(asked);
const { object: choice } = await generateObject({ ...asked, schema: undefined, output: 'enum', enum: ['Oslo', 'Rome'] });
const { object: list } = await generateObject({
  ...asked, output: 'array', schema: z.object({ day: z.number().int().min(1).max(3) }), seed: 1, temperature: 1 });
const stream = streamObject(asked);
let partials = 0;
for await (const _ of stream.partialObjectStream) ++partials;
const { toolCalls, finishReason: toolFinish } = await generateText({
  model, temperature: 0, maxOutputTokens: 60, prompt: 'What is the weather in Oslo?',
  system: 'You are Kvasir, a small assistant that remembers. You can call weather and clock.',
  tools: { weather: tool({ description: 'weather', inputSchema: z.object({ city: z.string() }) }) },
});
console.log(JSON.stringify({
  object, usage, finishReason, choice, list, streamed: await stream.object, partials, toolFinish,
  calls: toolCalls.map((call) => ({ name: call.toolName, input: call.input })),
}));
