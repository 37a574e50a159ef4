// Node's client libraries talk to gateways, all engines at the same time. Arguments are ENGINE=ADDRESS=ADDRESS, the second one a
// pool's that serves embeddings, and programs to run. Each check prints a line; the status is 1 if one failed.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const model = 'tandem-sim';
const apiKey = 'any';
const messages = [{ role: 'user', content: 'Hello there' }];
const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
// talk generates and streams with a model of Vercel's AI SDK.
async function talk(m) {
  const whole = await generateText({ model: m, prompt: 'Hello there', maxOutputTokens: 40, maxRetries: 0 });
  assert.ok(whole.text && whole.usage.outputTokens > 0);
  const errors = [];
  const s = streamText({ model: m, prompt: 'Hello there', maxOutputTokens: 40, maxRetries: 0, onError: ({ error }) => errors.push(error) });
  let text = '';
  for await (const part of s.textStream) text += part;
  assert.deepEqual(errors, []);
  assert.ok(text && (await s.usage).outputTokens > 0);
}

// call has it call a tool, run it and go on.
async function call(m) {
  let ran = 0;
  const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: async () => { ran++; return 'sunny'; } });
  const r = await generateText({ model: m, prompt: 'The weather in Paris?', maxOutputTokens: 400, maxRetries: 0, tools: { weather },
    stopWhen: stepCountIs(2), prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: 'tool', toolName: 'weather' } : 'none' }) });
  assert.equal(ran, 1);
  assert.equal(r.steps.length, 2);
}

// checksOf are the checks of an engine.
function checksOf(address, pool) {
  const openai = new OpenAI({ baseURL: address + '/v1', apiKey, maxRetries: 0 });
  const anthropic = new Anthropic({ baseURL: address, apiKey, maxRetries: 0 });
  const compatible = createOpenAICompatible({ name: 'tandem', baseURL: address + '/v1', apiKey, includeUsage: true });
  const vercel = createOpenAI({ baseURL: address + '/v1', apiKey });
  return {
    async openai_chat() {
      const p = { model, messages, max_tokens: 40, temperature: 0 };
      const whole = await openai.chat.completions.create(p);
      let text = '', usage;
      for await (const c of await openai.chat.completions.create({ ...p, stream: true, stream_options: { include_usage: true } })) {
        text += c.choices[0]?.delta.content ?? '';
        usage = c.usage ?? usage;
      }
      assert.equal(text, whole.choices[0].message.content);
      assert.equal(usage.total_tokens, whole.usage.total_tokens);
      await assert.rejects(openai.chat.completions.create({ ...p, model: 'none' }), OpenAI.NotFoundError);
      await assert.rejects(openai.chat.completions.create({ ...p, max_tokens: 1e7 }), { status: 400, code: 'context_length_exceeded' });
      const cut = await openai.chat.completions.create({ ...p, max_tokens: 2000, stream: true });
      for await (const _ of cut) break; // which ends the request
    },
    async openai_tools() {
      const tools = [{ type: 'function', function: { name: 'weather', parameters: schema } }];
      const m = (await openai.chat.completions.create({ model, messages, max_tokens: 400, tools,
        tool_choice: { type: 'function', function: { name: 'weather' } } })).choices[0].message;
      assert.ok('city' in JSON.parse(m.tool_calls[0].function.arguments));
      const end = await openai.chat.completions.create({ model, max_tokens: 12, tools, tool_choice: 'none',
        messages: [...messages, m, { role: 'tool', tool_call_id: m.tool_calls[0].id, content: 'sunny' }] });
      assert.ok(end.choices[0].message.content);
    },
    async openai_responses() {
      const p = { model, input: 'Hello there', max_output_tokens: 400, store: false };
      assert.ok((await openai.responses.create(p)).output_text);
      assert.ok((await openai.responses.stream(p).finalResponse()).output_text);
    },
    async anthropic_messages() {
      const p = { model, messages, max_tokens: 12 };
      const whole = await anthropic.messages.create(p);
      const s = await anthropic.messages.stream(p).finalMessage();
      assert.equal(s.content[0].text, whole.content[0].text);
      assert.equal(s.usage.output_tokens, whole.usage.output_tokens);
      await assert.rejects(anthropic.messages.create({ ...p, model: 'none' }), Anthropic.NotFoundError);
      await assert.rejects(anthropic.messages.create({ ...p, max_tokens: 1e7, stream: true }), Anthropic.BadRequestError);
    },
    ai_sdk_compatible: () => talk(compatible(model)),
    ai_sdk_compatible_tools: () => call(compatible(model)),
    ai_sdk_anthropic: () => talk(createAnthropic({ baseURL: address + '/v1', apiKey })(model)),
    ai_sdk_anthropic_tools: () => call(createAnthropic({ baseURL: address + '/v1', apiKey })(model)),
    ai_sdk_openai_chat: () => talk(vercel.chat(model)),
    ai_sdk_openai_responses: () => talk(vercel(model)),
    ai_sdk_openai_responses_tools: () => call(vercel(model)),
    async ai_sdk_openai_responses_turns() {
      const first = { role: 'user', content: 'Hello there' };
      const p = { model: vercel(model), maxOutputTokens: 40, maxRetries: 0 };
      const answer = await generateText({ ...p, messages: [first] });
      const messages = [first, ...answer.response.messages, { role: 'user', content: 'And now?' }];
      await assert.rejects(generateText({ ...p, messages }), /set store to false/); // it refers to the answer by its id
      assert.ok((await generateText({ ...p, messages, providerOptions: { openai: { store: false } } })).text);
    },
    async embeddings() {
      const vectors = new OpenAI({ baseURL: pool + '/v1', apiKey, maxRetries: 0 }).embeddings;
      const input = ['one', 'two'];
      const packed = await vectors.create({ model, input }); // which asks for base64
      const floats = await vectors.create({ model, input, encoding_format: 'float' });
      assert.equal(packed.usage.prompt_tokens, floats.usage.prompt_tokens);
      for (const [i, { embedding }] of floats.data.entries()) {
        assert.ok(embedding.length > 8);
        assert.deepEqual(packed.data[i].embedding.map(Math.fround), embedding.map(Math.fround));
      }
      assert.equal((await vectors.create({ model, input: 'one', dimensions: 8 })).data[0].embedding.length, 8);
      const m = createOpenAICompatible({ name: 'tandem', baseURL: pool + '/v1', apiKey }).embeddingModel(model);
      assert.equal((await embedMany({ model: m, values: input, maxRetries: 0 })).embeddings.length, 2);
    },
  };
}

async function run(engine, name, check) {
  try {
    await check();
    return ['ok    ', engine, name];
  } catch (e) {
    process.exitCode = 1;
    return ['FAILED', engine, name, String(e.stack ?? e).slice(0, 400)];
  }
}

const engines = process.argv.slice(2).filter((a) => a.includes('=')).map((a) => a.split('='));
const ran = engines.flatMap(([engine, address, pool]) => Object.entries(checksOf(address, pool))
  .map(([name, check]) => run(engine, name, check)));
for (const line of await Promise.all(ran)) console.log(...line);
for (const program of process.argv.slice(2).filter((a) => !a.includes('='))) {
  const print = console.log;
  let text = '';
  console.log = (...all) => { text += all.join(' '); };
  await run('', program, () => import(program));
  console.log = print;
  if (!text.trim()) process.exitCode = 1;
  console.log(text.trim() ? 'ok    ' : 'FAILED', program);
}
